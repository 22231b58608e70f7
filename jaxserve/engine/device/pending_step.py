"""PendingStep: a step from its plan to its results, and the results on the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import jax
import numpy as np

from jaxserve.engine.device.buckets import Bucket
from jaxserve.engine.device.step import PIECE, LayersOutput, StepOutput
from jaxserve.engine.device.verify_rows import VerifyRows
from jaxserve.outputs import TokenLogprobs
from jaxserve.sampling.logprobs import Logprobs
from scheduler import Sequence, StepPlan

MIN_LOGPROB = -9999.0  # in place of -inf, which JSON can't hold


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """Prompt tokens whose logprobs a step computes.

    Args:
        first: row of the hidden states [T, E] that predicts the first of them.
        position: of the first token in the prompt.
        token_ids: the tokens.
    """

    sequence: Sequence
    first: int
    position: int
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class StepResults:
    """What a step computed, on the host.

    Args:
        ids: one a row of the plan; -1 where the logits weren't finite.
        drafted: for each of the plan's drafts, the tokens that its sequence gets.
        verified: of each sequence with drafts, how many guesses were taken, and of how many.
        logprobs: of the sequences that asked for them, one entry for each of their rows.
        embeddings: likewise, [E] float32 each.
        prompt_logprobs: for each span, one entry a token.
    """

    ids: list[int]
    drafted: list[list[int]]
    verified: dict[Sequence, tuple[int, int]]
    logprobs: dict[Sequence, list[TokenLogprobs]]
    embeddings: dict[Sequence, bytes]
    prompt_logprobs: list[tuple[PromptSpan, list[TokenLogprobs]]]


@dataclass(slots=True, eq=False)
class PendingStep:
    """A step whose results aren't read yet, or several steps that are computed in one dispatch.

    The core makes it from plans. The runner fills in the rest: it dispatches the layers first, and
    then the draw of the next tokens, which may have to wait for the tokens of the step before.

    Args:
        plans: one; or several, if they only decode the same rows.
        planned_at, dispatched_at: when its planning began, and when its layers were dispatched, by
            time.monotonic().
        bucket: the shape that it is padded to.
        verify: its rows, if it verifies guesses; otherwise each row of the plan is one.
        adapted: whether a row has an adapter.
        awaits_tokens: what a row may draw depends on a token of the step before.
        layers: what the draw takes from the layers; None before they are dispatched, and again
            once the draw is, so that the memory is free.
        output: what is drawn; None before the draw is dispatched. Of several plans, each array has
            one entry a plan.
        logprob_rows: rows whose tokens' logprobs were asked for.
        prompt_spans: prompt tokens whose logprobs were asked for.
        prompt_pieces: logprobs of the prompt tokens, by pieces of PIECE rows each.
        pooled_rows: rows whose embeddings were asked for.
        pooled: [R, E] float32, embeddings of all rows; None if none was asked for.
    """

    plans: list[StepPlan]
    planned_at: float = 0.0
    dispatched_at: float = 0.0
    bucket: Bucket = field(init=False)
    verify: VerifyRows | None = None
    adapted: bool = False
    awaits_tokens: bool = False
    layers: LayersOutput | None = None
    output: StepOutput | None = None
    logprob_rows: dict[Sequence, list[int]] = field(default_factory=dict)
    prompt_spans: list[PromptSpan] = field(default_factory=list)
    prompt_pieces: dict[int, Logprobs[jax.Array]] = field(default_factory=dict)
    pooled_rows: dict[Sequence, int] = field(default_factory=dict)
    pooled: jax.Array | None = None

    @property
    def rows(self) -> int:
        """Rows of each plan; the output's other rows are padding."""
        if self.verify is not None:
            return len(self.verify.slots)
        return len(self.plans[0].decode_slots) + len(self.plans[0].chunks)

    @property
    def num_tokens(self) -> int:
        """Prompt tokens that it computes and output tokens that it draws, which is how vLLM counts
        an iteration: the last token of a prompt is one of each."""
        firsts = sum(chunk.samples for plan in self.plans for chunk in plan.chunks)
        return sum(plan.num_tokens for plan in self.plans) + firsts

    @property
    def is_drawn(self) -> bool:
        """Whether the draw is dispatched."""
        return self.output is not None

    @property
    def are_layers_done(self) -> bool:
        """Whether the device has computed the layers. Asked between dispatch and draw only."""
        assert self.layers is not None
        return bool(self.layers.drawn.is_ready())  # type: ignore[attr-defined]

    @property
    def is_done(self) -> bool:
        """Whether the device has computed the output, so that wait() returns at once."""
        return self.output is not None and bool(
            self.output.ids.is_ready()  # type: ignore[attr-defined]
        )

    def start_copies(self) -> None:
        """Has the device copy to the host what wait() reads, as soon as it is computed."""
        assert self.output is not None
        self.output.ids.copy_to_host_async()
        own = [self.output.logprobs] if self.logprob_rows else []
        for logprobs in (*own, *self.prompt_pieces.values()):
            for array in logprobs:
                array.copy_to_host_async()
        if self.pooled is not None:
            self.pooled.copy_to_host_async()

    def wait(self) -> list[StepResults]:
        """The results, one entry a plan, once the device has computed them.

        Raises:
            Exception: the device failed; it is jax's own.
        """
        assert self.output is not None
        ids = np.atleast_2d(np.asarray(self.output.ids))[:, : self.rows].tolist()
        embeddings, prompt = self._embeddings(), list(self._prompt_logprobs())
        return [
            StepResults(
                *self._tokens(own), self._logprobs(nth, own, self.output), embeddings, prompt
            )
            for nth, own in enumerate(ids)
        ]

    def _tokens(
        self, ids: list[int]
    ) -> tuple[list[int], list[list[int]], dict[Sequence, tuple[int, int]]]:
        """The first three fields of StepResults, by what the rows drew."""
        if self.verify is None:
            return ids, [], {}
        taken = self.verify.taken(ids)
        verified = {
            draft.sequence: (len(own) - 1, len(draft.guesses))
            for draft, own in zip(self.verify.drafts, taken, strict=True)
        }
        return [ids[row] for row in self.verify.firsts], taken, verified

    def _embeddings(self) -> dict[Sequence, bytes]:
        """The embeddings that were asked for, [E] float32 each."""
        if self.pooled is None:
            return {}
        on_host = np.asarray(self.pooled)
        return {sequence: on_host[row].tobytes() for sequence, row in self.pooled_rows.items()}

    def _logprobs(
        self, nth: int, ids: list[int], output: StepOutput
    ) -> dict[Sequence, list[TokenLogprobs]]:
        """The logprobs of the ids that the nth plan drew, where they were asked for."""
        if not self.logprob_rows:
            return {}
        arrays = _on_host(output.logprobs)
        if output.ids.ndim > 1:
            arrays = Logprobs(*(array[nth] for array in arrays))
        return {
            sequence: [
                _entry(arrays, row, ids[row], sequence.request.payload.params.logprobs)
                for row in rows
            ]
            for sequence, rows in self.logprob_rows.items()
        }

    def _prompt_logprobs(self) -> Iterator[tuple[PromptSpan, list[TokenLogprobs]]]:
        """For each span, the logprobs of its tokens."""
        if not self.prompt_spans:
            return
        pieces = {n: _on_host(logprobs) for n, logprobs in self.prompt_pieces.items()}
        for span in self.prompt_spans:
            most = span.sequence.request.payload.params.prompt_logprobs
            rows = enumerate(span.token_ids, span.first)
            yield (
                span,
                [_entry(pieces[row // PIECE], row % PIECE, token, most) for row, token in rows],
            )


def _on_host(logprobs: Logprobs[jax.Array]) -> Logprobs[np.ndarray]:
    chosen, rank, top_ids, top = map(np.asarray, logprobs)
    return Logprobs(chosen, rank, top_ids, top)


def _entry(arrays: Logprobs[np.ndarray], row: int, token: int, most: int) -> TokenLogprobs:
    ids = arrays.top_ids[row, :most].tolist()
    top = np.maximum(arrays.top[row, :most], MIN_LOGPROB).tolist()
    chosen = max(float(arrays.chosen[row]), MIN_LOGPROB)
    return TokenLogprobs(token, chosen, int(arrays.rank[row]), tuple(zip(ids, top, strict=True)))
