"""Beam search: the beams are sequences of a request, which are forked and ended after each step.

Algorithm and scores are those of transformers' generate(num_beams=...). Each beam is a sequence of
the scheduler, so beams share their blocks. A beam that is continued in several ways is forked; one
that isn't continued is ended. The device computes the likeliest tokens after each beam, and the
host chooses among them once it has those of all beams of the request. Beams that have theirs early
(another was preempted, or waits for a slot) release their blocks, so that the others always fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from jaxserve.engine.core.protocol import Output, Submit
from jaxserve.outputs import TokenLogprobs
from jaxserve.sampling.params import MAX_LOGPROBS, BeamSearchParams, SamplingParams
from scheduler import Scheduler, Sequence


def beam_params(params: SamplingParams) -> SamplingParams:
    """The params with which the device computes each beam of a request."""
    return replace(params, n=1, temperature=0, logprobs=MAX_LOGPROBS)


@dataclass(frozen=True, slots=True, eq=False)
class _Token:
    """The last token of an output, linked to those before it.

    Args:
        total: sum of the logprobs of all its tokens.
        length: tokens up to and with this one.
    """

    before: _Token | None
    entry: TokenLogprobs
    total: float
    length: int

    def path(self) -> list[TokenLogprobs]:
        """The entries of the whole output."""
        entries, token = [], self  # type: list[TokenLogprobs], _Token | None
        while token is not None:
            entries.append(token.entry)
            token = token.before
        return entries[::-1]


@dataclass(slots=True)
class _Search:
    """One request's search.

    Args:
        submitted: the request.
        beams: the live beams and their last tokens (None before the first).
        likeliest: the likeliest next tokens of the beams for which they are known.
        ended: score and last token of the best outputs that have ended, best first.
    """

    submitted: Submit
    beams: dict[Sequence, _Token | None]
    likeliest: dict[Sequence, TokenLogprobs] = field(default_factory=dict)
    ended: list[tuple[float, _Token]] = field(default_factory=list)

    @property
    def rules(self) -> BeamSearchParams:
        assert self.submitted.params.beam_search is not None
        return self.submitted.params.beam_search

    def advance(self, last: bool) -> list[tuple[Sequence, _Token]]:
        """Chooses the beams' next tokens. Returns the last token of each output that goes on, with
        the beam that it continues, best first; none when the search is over.

        Args:
            last: every output ends with this token, for its length.
        """
        width, stops = self.rules.beam_width, self.submitted.stop_token_ids
        going: list[tuple[Sequence, _Token]] = []
        candidates = sorted(self._candidates(), key=lambda c: c[1].total, reverse=True)
        for place, (beam, token) in enumerate(candidates):
            if last or token.entry.token_id in stops:
                if place < width:
                    self.ended.append((self._score(token.total, token.length), token))
            elif len(going) < width:
                going.append((beam, token))
        self.ended.sort(key=lambda e: e[0], reverse=True)
        del self.ended[width:]
        return going if going and self._may_improve(going[0][1]) else []

    def _candidates(self) -> Iterator[tuple[Sequence, _Token]]:
        for beam, before in self.beams.items():
            total, length = (before.total, before.length) if before else (0.0, 0)
            top = self.likeliest[beam].top
            shown = top[: self.submitted.params.logprobs or 0]
            for rank, (token_id, logprob) in enumerate(top, start=1):
                entry = TokenLogprobs(token_id, logprob, rank, shown)
                yield beam, _Token(before, entry, total + logprob, length + 1)

    def _score(self, total: float, length: int) -> float:
        return float(total / length**self.rules.length_penalty)

    def _may_improve(self, best: _Token) -> bool:
        rules = self.rules
        if len(self.ended) < rules.beam_width:
            return True
        if rules.early_stopping is True:
            return False
        length = best.length
        if rules.early_stopping == "never" and rules.length_penalty > 0:
            length = self.submitted.params.max_tokens or length
        return self._score(best.total, length) > self.ended[-1][0]

    def outputs(self) -> list[Output]:
        """The best outputs of an ended search, whole."""
        outputs = []
        for index, (_, token) in enumerate(self.ended[: self.submitted.params.n]):
            path, token_id = token.path(), token.entry.token_id
            stopped = token_id in self.submitted.stop_token_ids
            outputs.append(
                Output(
                    self.submitted.request_id,
                    [entry.token_id for entry in path],
                    "stop" if stopped else "length",
                    token_id if stopped else None,
                    index=index,
                    logprobs=None if self.submitted.params.logprobs is None else path,
                )
            )
        return outputs


class Beams:
    """The searches that haven't ended."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._searches: dict[str, _Search] = {}
        self._updated: dict[str, None] = {}  # requests with new tokens since the last select()

    def start(self, sequence: Sequence, submitted: Submit) -> None:
        """Starts a request's search with its one sequence, whose request has await_tokens set."""
        self._searches[submitted.request_id] = _Search(submitted, {sequence: None})

    def drop(self, request_id: str) -> None:
        """Removes a request; unknown ids are ignored. The caller ends its sequences."""
        self._searches.pop(request_id, None)

    def add_likeliest(self, sequence: Sequence, likeliest: TokenLogprobs) -> None:
        """Adds the likeliest next tokens of a beam, unless its search was dropped."""
        request_id = sequence.request.request_id
        if request_id in self._searches:
            self._searches[request_id].likeliest[sequence] = likeliest
            self._updated[request_id] = None

    def select(self) -> list[Output]:
        """Advances the searches that have the likeliest tokens of all their beams; the outputs of
        those that end."""
        outputs = []
        updated, self._updated = self._updated, {}
        for request_id in updated:
            if (search := self._searches.get(request_id)) is None:
                continue
            if len(search.likeliest) < len(search.beams):
                for beam in search.likeliest:
                    self._scheduler.end(beam)
                continue
            going = search.advance(any(beam.finish_reason == "length" for beam in search.beams))
            if going:
                self._apply(search, going)
            else:
                outputs += search.outputs()
                self._scheduler.abort(request_id)
                self.drop(request_id)
        return outputs

    def _apply(self, search: _Search, going: list[tuple[Sequence, _Token]]) -> None:
        """Forks and ends sequences so that the beams that go on are left."""
        beams: dict[Sequence, _Token | None] = {}
        for beam, token in going:
            token_id = token.entry.token_id
            # The sequence itself ends with the likeliest token, which the device has drawn.
            unchanged = beam.finish_reason is None and beam.output_token_ids[-1] == token_id
            beams[beam if unchanged else self._scheduler.fork(beam, token_id)] = token
        for beam in search.beams:
            if beam not in beams:
                self._scheduler.end(beam)
        search.beams, search.likeliest = beams, {}
