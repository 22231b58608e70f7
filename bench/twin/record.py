"""Records plans of the real scheduler as the real runner packs them, without computing them.

Answers have a fixed length and ignore the end-of-sequence token, so that a plan does not depend on
what is sampled.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.twin.trace import PackedStep
from jaxserve import LLM, SamplingParams
from jaxserve.bench.datasets import LENGTHS
from jaxserve.engine.device.buckets import Bucket
from jaxserve.engine.device.pending_step import PendingStep
from jaxserve.engine.device.step import LayersOutput, StepOutput
from jaxserve.engine.device.step_batch import (
    DrawRows,
    StepBatch,
    StepInts,
    int_shapes,
    place,
    split,
)

Prompts = list[tuple[list[int], int]]  # token ids, and the tokens of the answer
LONG = 64  # tokens of an answer that is aborted once its steps have been recorded


@dataclass(frozen=True, slots=True)
class Recorded:
    """A step as the runner passes it to its programs: padded buffers, and the number of real
    rows."""

    bucket: Bucket
    ints: np.ndarray
    rows: int
    block_tables: np.ndarray  # of all slots, [G, N+1, W]
    block_size: int

    @property
    def batch(self) -> StepInts[np.ndarray]:
        """The model's buffer, field by field."""
        return StepInts(*split(self.ints, int_shapes(self.bucket)))

    @property
    def tokens(self) -> int:
        """Tokens that are no padding."""
        return int(self.batch.query_starts[self.rows])

    def packed(self, ids: np.ndarray) -> PackedStep:
        """The step without padding; `ids` [S] are what ours sampled."""
        batch, draws, n, s = self.batch, DrawRows.split(self.batch.draws), self.tokens, self.rows
        placed = place(
            StepInts(*map(jnp.asarray, batch)), jnp.asarray(self.block_tables), self.block_size
        )
        placed = StepBatch(*map(np.asarray, placed))
        blocks = -(-int(batch.context_lens[:s].max()) // self.block_size)
        return PackedStep(
            tokens=batch.tokens[:n],
            positions=placed.positions[:n],
            write_slots=placed.write_slots[0, :n],
            query_starts=batch.query_starts[: s + 1],
            context_lens=batch.context_lens[:s],
            block_tables=placed.block_tables[0, :s, :blocks],
            slots=draws.slots[:s],
            keep=draws.keep[:s],
            ids=ids,
        )


class Recorder:
    """The engine's loop with a runner that packs and records each step, and returns zeros as
    sampled tokens."""

    def __init__(self, llm: LLM) -> None:
        self._llm, self._core = llm, llm.core
        self._runner: Any = llm.core._runner
        self._steps: list[Recorded] = []
        self._tables = np.array(self._runner._state.block_tables)
        self._count = 0
        rows = max(bucket.drawn for bucket, _ in self._runner._steps)
        self._zeros = jax.device_put(np.zeros(rows, np.int32))

    @contextmanager
    def _recording(self) -> Iterator[None]:
        dispatch, draw = self._runner._dispatch_layers, self._runner.draw
        self._runner._dispatch_layers, self._runner.draw = self._keep, self._answer
        try:
            yield
        finally:
            self._runner._dispatch_layers, self._runner.draw = dispatch, draw
            self._core.reset_prefix_cache()  # nothing was computed

    def _keep(self, step: PendingStep, entries: np.ndarray) -> None:
        slots, groups, indices, blocks = entries
        self._tables[groups, slots, indices] = blocks
        buffers = self._runner._buffers[step.bucket]
        (ints,) = buffers.uploads(entries[:, :0], self._runner._slots.spare)
        size = self._llm.config.block_size
        self._steps.append(Recorded(step.bucket, ints, step.rows, self._tables.copy(), size))
        step.layers = LayersOutput(self._zeros, self._zeros, self._zeros)

    def _answer(self, step: PendingStep) -> None:
        step.output = StepOutput(self._zeros, None)  # type: ignore[arg-type]

    def _submit(self, prompts: Prompts) -> None:
        for ids, tokens in prompts:
            params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
            name = f"twin{self._count}"
            self._count += 1
            refused = self._core.submit(self._llm._validator.submission(name, ids, params))
            assert refused is None, refused

    def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            self._core.step()

    def _drop_all(self) -> None:
        for i in range(self._count):
            self._core.abort(f"twin{i}")
        self._until(lambda: not self._core.has_work)

    def decode(self, rows: int, context: int, steps: int) -> list[Recorded]:
        """Steps of `rows` sequences that compute a token each, the first at this context."""
        with self._recording():
            self._steps = []
            self._submit([(prompt(context - 1, i), LONG) for i in range(rows)])
            self._until(lambda: len(self._decodes(rows)) == steps)
            self._drop_all()
        return self._decodes(rows)[:steps]

    def _decodes(self, rows: int) -> list[Recorded]:
        return [step for step in self._steps if step.bucket.decode and step.rows == rows]

    def prompt(self, tokens: int, decodes: int = 0, context: int = 0) -> list[Recorded]:
        """The one step that computes a prompt of so many tokens, beside `decodes` sequences that
        decode at about this context."""
        with self._recording():
            if decodes:
                self._submit([(prompt(context, i), LONG) for i in range(decodes)])
                self._until(lambda: bool(self._steps) and self._steps[-1].tokens == decodes)
            self._steps = []
            self._submit([(prompt(tokens, decodes), 1)])
            self._until(lambda: any(s.tokens == tokens + decodes for s in self._steps))
            self._drop_all()
        return [s for s in self._steps if s.tokens == tokens + decodes][:1]

    def trace(self, prompts: Prompts) -> list[Recorded]:
        """All steps of requests that arrive together."""
        with self._recording():
            self._steps = []
            self._submit(prompts)
            self._until(lambda: not self._core.has_work)
        return self._steps


def prompt(tokens: int, seed: int) -> list[int]:
    """Random ids."""
    return np.random.default_rng((tokens, seed)).integers(10, 250, tokens).tolist()


def sharegpt_like(requests: int, scale: float) -> Prompts:
    """Requests of ShareGPT-like lengths, times `scale`."""
    draws = random.Random(0)
    lengths = [LENGTHS["sharegpt-like"].draw(draws) for _ in range(requests)]
    return [
        (prompt(max(1, round(p * scale)), i), max(1, round(a * scale)))
        for i, (p, a) in enumerate(lengths)
    ]
