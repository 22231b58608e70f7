"""What a caller gets: deltas while a request streams, and the complete output at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

FinishReason = Literal["stop", "length", "abort"]


class TokenLogprobs(NamedTuple):
    """One token under the model's own distribution, before temperature and other processing.

    Args:
        logprob: natural logarithm of its probability; -9999 if it is less than that.
        rank: 1 for the likeliest token.
        top: (token id, logprob) of the likeliest tokens, as many as the request asks for.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


PromptLogprobs = tuple[TokenLogprobs | None, ...]  # the first token has none


@dataclass(slots=True)
class CompletionDelta:
    """What was added to one choice since the last delta.

    Not to be changed. It isn't frozen because one is made for every token, and a frozen one takes
    three times as long to make.

    Args:
        index: which of the request's choices.
        text: text to append; may be empty while bytes of a character or a possible stop string
            are held back.
        token_ids: the ids that were added; the text of the last ones may still be held back.
        finish_reason: None until the last delta of this choice.
        stop_reason: the stop string or stop token id that ended it; None for EOS or length.
        logprobs: one entry a token id, if the request asks for them.
        prompt_logprobs: in the first delta of each choice, if the request asks for them.
        cached_tokens: in the first delta of a request's first choice: prompt tokens that were
            found in the prefix cache.
        embedding: of the prompt, [E] float32 as bytes, instead of text.
        accepted_guesses, rejected_guesses: with speculation, of those verified for these tokens.
    """

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    cached_tokens: int | None = None
    embedding: bytes | None = None
    accepted_guesses: int = 0
    rejected_guesses: int = 0

    @classmethod
    def join(cls, deltas: Sequence[CompletionDelta]) -> CompletionDelta:
        """Joins deltas of one choice, in order, into one."""
        first, last = deltas[0], deltas[-1]
        return cls(
            last.index,
            "".join([delta.text for delta in deltas]),
            tuple([token for delta in deltas for token in delta.token_ids]),
            last.finish_reason,
            last.stop_reason,
            _join_logprobs(deltas),
            first.prompt_logprobs,
            first.cached_tokens,
            accepted_guesses=sum([delta.accepted_guesses for delta in deltas]),
            rejected_guesses=sum([delta.rejected_guesses for delta in deltas]),
        )


def _join_logprobs(deltas: Sequence[CompletionDelta]) -> tuple[TokenLogprobs, ...] | None:
    if all(delta.logprobs is None for delta in deltas):
        return None
    return tuple(entry for delta in deltas for entry in delta.logprobs or ())


class Logprob(NamedTuple):
    """One token at one position, as vLLM has it.

    Args:
        logprob, rank: as of TokenLogprobs.
        decoded_token: the text that it adds there.
    """

    logprob: float
    rank: int
    decoded_token: str


class PositionLogprobs(dict[int, Logprob]):
    """The logprobs of one position by token id: the position's own token first, then the likeliest.

    token_id, logprob, rank, top: as of TokenLogprobs.
    """

    def __init__(self, entry: TokenLogprobs, name: Callable[[int], str]) -> None:
        """Args: name: the text that a token adds at this position."""
        likeliest = {t: Logprob(p, i, name(t)) for i, (t, p) in enumerate(entry.top, 1)}
        own = Logprob(entry.logprob, entry.rank, name(entry.token_id))
        super().__init__({entry.token_id: own} | likeliest | {entry.token_id: own})
        self.token_id, self.logprob, self.rank, self.top = entry


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice so far. Fields as in CompletionDelta, for the whole output.

    Args:
        finish_reason: None while the choice goes on.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    stop_reason: int | str | None = None
    logprobs: tuple[PositionLogprobs, ...] | None = None

    @classmethod
    def join(
        cls,
        deltas: Sequence[CompletionDelta],
        logprobs: tuple[PositionLogprobs, ...] | None = None,
    ) -> CompletionOutput:
        """Joins the deltas of one choice, in order. Args: logprobs: those of the deltas."""
        whole = CompletionDelta.join(deltas)
        return cls(
            index=whole.index,
            text=whole.text,
            token_ids=whole.token_ids,
            finish_reason=whole.finish_reason,
            stop_reason=whole.stop_reason,
            logprobs=logprobs,
        )

    @property
    def cumulative_logprob(self) -> float | None:
        """Log-probability of the whole output; None without logprobs."""
        return None if self.logprobs is None else sum(entry.logprob for entry in self.logprobs)


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request: its prompt and its choices.

    Args:
        index: the prompt's place among those of the call.
        finished: whether all choices have ended.
        num_cached_tokens: prompt tokens that were found in the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
    num_cached_tokens: int = 0
    index: int = 0
    finished: bool = True
