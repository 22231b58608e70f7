"""A step in flight: what the device will have to say, and about whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import jax
import numpy as np

from jaxserve.engine.device.step import PIECE, StepOutput
from jaxserve.outputs import TokenLogprobs
from jaxserve.sampling.logprobs import Logprobs
from scheduler import Sequence

MIN_LOGPROB = -9999.0  # in place of -inf, which JSON can't hold


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """Prompt tokens whose logprobs a step computes.

    Args:
        first: row of the token before the first one.
        position: of the first in the prompt.
        token_ids: the tokens.
    """

    sequence: Sequence
    first: int
    position: int
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class StepResults:
    """What the device said, on the host.

    Args:
        ids: one a row of the plan; -1 where it failed.
        logprobs, embeddings: of the sequences that asked for them; an embedding is [E] float32.
        prompt_logprobs: span by span.
    """

    ids: list[int]
    logprobs: dict[Sequence, TokenLogprobs]
    embeddings: dict[Sequence, bytes]
    prompt_logprobs: list[tuple[PromptSpan, list[TokenLogprobs]]]


@dataclass(slots=True)
class PendingStep:
    """A step in flight, or several in one dispatch.

    Args:
        output: of several, one entry a step.
        rows: the plan's rows; the rest of the output is padding.
        logprob_rows: rows whose tokens' logprobs were asked for.
        prompt_pieces: logprobs of the prompt tokens after PIECE rows each.
        pooled_rows: rows whose embeddings were asked for.
        pooled: [R, E] float32, embeddings of all rows; None if none was.
    """

    output: StepOutput
    rows: int
    logprob_rows: dict[Sequence, int] = field(default_factory=dict)
    prompt_spans: list[PromptSpan] = field(default_factory=list)
    prompt_pieces: dict[int, Logprobs[jax.Array]] = field(default_factory=dict)
    pooled_rows: dict[Sequence, int] = field(default_factory=dict)
    pooled: jax.Array | None = None

    def start_copies(self) -> None:
        """Sends what will be read to the host as soon as it is there."""
        self.output.ids.copy_to_host_async()
        own = [self.output.logprobs] if self.logprob_rows else []
        for logprobs in (*own, *self.prompt_pieces.values()):
            for array in logprobs:
                array.copy_to_host_async()
        if self.pooled is not None:
            self.pooled.copy_to_host_async()

    @property
    def ready(self) -> bool:
        """Whether wait() would return at once."""
        return bool(self.output.ids.is_ready())  # type: ignore[attr-defined]

    def wait(self) -> list[StepResults]:
        """Step by step all that was asked for, once the device has it; raises what the device
        raised."""
        ids = np.atleast_2d(np.asarray(self.output.ids))[:, : self.rows].tolist()
        embeddings, prompt = self._embeddings(), list(self._prompt_logprobs())
        return [
            StepResults(own, self._logprobs(nth, own), embeddings, prompt)
            for nth, own in enumerate(ids)
        ]

    def _embeddings(self) -> dict[Sequence, bytes]:
        """The embeddings that were asked for, [E] float32 each."""
        if self.pooled is None:
            return {}
        on_host = np.asarray(self.pooled)
        return {sequence: on_host[row].tobytes() for sequence, row in self.pooled_rows.items()}

    def _logprobs(self, nth: int, ids: list[int]) -> dict[Sequence, TokenLogprobs]:
        """The logprobs of the ids that the nth step sampled, as far as they were asked for."""
        if not self.logprob_rows:
            return {}
        arrays = _on_host(self.output.logprobs)
        if self.output.ids.ndim > 1:
            arrays = Logprobs(*(array[nth] for array in arrays))
        return {
            sequence: _entry(arrays, row, ids[row], sequence.request.payload.params.logprobs)
            for sequence, row in self.logprob_rows.items()
        }

    def _prompt_logprobs(self) -> Iterator[tuple[PromptSpan, list[TokenLogprobs]]]:
        """The logprobs of prompt tokens, span by span."""
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
