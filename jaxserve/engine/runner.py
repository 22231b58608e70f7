"""Runner: turns a plan into padded arrays and runs the compiled step on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import jax
import numpy as np

from jaxserve.engine.batch import DRAW_COLUMNS, DrawRows, StepInts, int_shapes, size, split
from jaxserve.engine.buckets import Bucket, BucketTable
from jaxserve.engine.handle import PromptSpan, StepHandle
from jaxserve.engine.sampling_state import SamplingState
from jaxserve.engine.segments import PartedParams
from jaxserve.engine.slots import SlotTable
from jaxserve.engine.step import PIECE, CopyBlocks, Step, StepState
from jaxserve.errors import JaxserveError
from jaxserve.sampling.logprobs import Logprobs
from jaxserve.sampling.rows import NUM_LOGPROBS
from scheduler import Chunk, Sequence, StepPlan


@dataclass(slots=True)
class HostBuffers:
    """One bucket's host arrays and the named views into them."""

    ints: np.ndarray
    draws: np.ndarray
    batch: StepInts[np.ndarray]
    rows: DrawRows[np.ndarray]

    @classmethod
    def allocate(cls, bucket: Bucket, width: int, groups: int) -> HostBuffers:
        shapes = int_shapes(bucket, width, groups)
        ints = np.zeros(size(shapes), np.int32)
        draws = np.zeros((bucket.drawn, DRAW_COLUMNS), np.int32)
        rows = DrawRows.split(draws)
        rows = rows._replace(floats=rows.floats.view(np.float32))
        return cls(ints, draws, StepInts(*split(ints, shapes)), rows)


@dataclass(frozen=True, slots=True)
class Started:
    """A step whose layers are dispatched, and whose draw is still to come.

    Args:
        buffers: its host arrays.
        rows: the plan's rows; the rest is padding.
        x: [T, E], the last layer's output.
        drawn: [R, E], its rows that are drawn from.
        spans: prompt tokens whose logprobs are asked for.
        pooled: rows whose embeddings are asked for; None if there is none.
        awaits_tokens: what a row may draw depends on a token that may be in flight.
    """

    step: Step
    buffers: HostBuffers
    rows: int
    x: jax.Array
    drawn: jax.Array
    spans: list[PromptSpan]
    pooled: dict[Sequence, int] | None
    awaits_tokens: bool = False

    @property
    def ready(self) -> bool:
        """Whether the device is through with the layers."""
        return bool(self.drawn.is_ready())  # type: ignore[attr-defined]


class Runner:
    """Owns the device state: parameters, KV pages, each slot's last token and sampling tables.

    Args:
        steps: the compiled step of each bucket.
        copy: copies blocks of the pool.
        params: the model's parameters.
        new_state: makes an empty state, which is donated from step to step.
        slots: the host mirror.
    """

    def __init__(
        self,
        steps: dict[Bucket, Step],
        copy: CopyBlocks,
        table: BucketTable,
        params: PartedParams,
        new_state: Callable[[], StepState],
        slots: SlotTable,
        block_size: int,
    ) -> None:
        self._steps, self._table, self._params = steps, table, params
        self._new_state, self._slots = new_state, slots
        self._state = new_state()
        self._sampling = SamplingState(self._state.tables)
        self._copy = copy
        self._block_size = block_size
        groups, _, width = slots.block_tables.shape
        # Two sets in turn: while a step may still read one, the next step fills the other.
        self._buffers = {
            b: [HostBuffers.allocate(b, width, groups) for _ in range(2)] for b in steps
        }
        self._turn = 0
        self._last = table.decode[0]  # the bucket of the step started last

    def warm_up(self, buckets: Iterable[Bucket]) -> None:
        """Runs some buckets once, all padding, and what copies blocks and writes tables."""
        for bucket in buckets:
            self._run_empty(bucket)
        pages = self._copy(self._state.pages, ((0, 0),))
        tables = self._sampling.warm_up(self._state.tables)
        self._state = self._state._replace(pages=pages, tables=tables)

    def reset(self) -> None:
        """Starts over with an empty state, when a step that failed has taken the old one along,
        and runs that step's programs with nothing but padding: raises if even that fails."""
        for array in jax.tree.leaves(self._state):
            array.delete()  # first: there may be no room for both
        self._state = self._new_state()
        self._sampling.clear()
        self._run_empty(self._last)

    def dispatch(self, plan: StepPlan) -> Started:
        """Starts a step's layers and returns without waiting for the device."""
        if plan.copies:
            pages = self._copy(self._state.pages, plan.copies)
            self._state = self._state._replace(pages=pages)
        for start in plan.starts:
            self._sampling.start(start)
        self._slots.apply(plan)
        rows = len(plan.decode_slots) + len(plan.chunks)
        pooled = self._pooled_rows(plan)
        asks = bool(pooled) or any(map(self._prompt_targets, plan.chunks))
        bucket = self._table.pick(plan.num_tokens, rows, mixed=asks)
        buffers = self._empty(bucket)
        self._fill_decodes(buffers, np.array(plan.decode_slots, np.int32))
        spans = self._fill_chunks(buffers, plan)
        self._fill_rows(buffers, rows)
        awaits = self._sampling.awaits_tokens(plan.decode_slots)
        return self._start(bucket, buffers, rows, spans, pooled, awaits)

    def draw(self, started: Started, meanwhile: Callable[[], None] | None = None) -> StepHandle:
        """Starts the draw of the step dispatched last. If that awaits tokens, all those of the
        steps before it must be known.

        Args:
            meanwhile: as of SamplingState.advance().
        """
        drawn, step = started.buffers.rows, started.step
        sampled = drawn.keep > 0
        self._sampling.advance(drawn.slots[sampled], drawn.output_positions[sampled], meanwhile)
        state = self._state._replace(tables=self._sampling.upload(self._state.tables))
        draws = started.buffers.draws
        self._state, output = step.sample(self._params, state, started.drawn, draws)
        wanted = np.flatnonzero((drawn.ints[:, NUM_LOGPROBS] >= 0) & sampled).tolist()
        sequences = {self._slots.sequences[drawn.slots[row]]: row for row in wanted}
        spans = started.spans
        prompt = self._prompt_logprobs(step, started.x, spans) if spans else {}
        handle = StepHandle(output, started.rows, sequences, spans, prompt)
        if started.pooled is not None:
            assert step.pool is not None
            handle.pooled_rows = started.pooled
            handle.pooled = step.pool(self._params.ends, started.drawn)
        handle.start_copies()
        return handle

    def _run_empty(self, bucket: Bucket) -> None:
        buffers = self._empty(bucket)
        self._fill_rows(buffers, 0)
        self.draw(self._start(bucket, buffers, 0, [], None if bucket.decode else {})).wait()

    def take_failures(self) -> list[tuple[Sequence, JaxserveError]]:
        """Sequences that can't go on, and why, since the last call."""
        failed, self._sampling.failed = self._sampling.failed, []
        return failed

    def _prompt_targets(self, chunk: Chunk) -> list[int]:
        """The prompt tokens after the chunk's first ones whose logprobs are asked for."""
        sequence = self._slots.sequences[chunk.slot]
        assert sequence is not None
        request = sequence.request
        if request.payload.params.prompt_logprobs is None or sequence.index:
            return []
        stop = chunk.start + len(chunk.token_ids)
        return request.prompt_token_ids[chunk.start + 1 : stop + 1]

    def _pooled_rows(self, plan: StepPlan) -> dict[Sequence, int] | None:
        """The rows that end a prompt of which an embedding is asked for; None if there is none."""
        rows = {}
        for row, chunk in enumerate(plan.chunks, len(plan.decode_slots)):
            sequence = self._slots.sequences[chunk.slot]
            if chunk.samples and sequence is not None and sequence.request.payload.pool:
                rows[sequence] = row
        return rows or None

    def _empty(self, bucket: Bucket) -> HostBuffers:
        self._turn ^= 1
        buffers = self._buffers[bucket][self._turn]
        buffers.ints.fill(0)
        buffers.draws.fill(0)
        buffers.rows.slots.fill(self._slots.spare)
        buffers.batch.write_slots.fill(-1)  # padding writes nowhere
        return buffers

    def _fill_decodes(self, buffers: HostBuffers, decodes: np.ndarray) -> None:
        """Rows that continue from their last token, which the device holds."""
        n, slots, batch, rows = len(decodes), self._slots, buffers.batch, buffers.rows
        positions = slots.num_computed[decodes]
        batch.tokens[:n] = -1 - decodes
        batch.positions[:n] = positions
        blocks = slots.block_tables[:, decodes, positions // self._block_size]  # [G, n]
        batch.write_slots[:, :n] = blocks * self._block_size + positions % self._block_size
        batch.query_starts[1 : n + 1] = np.arange(1, n + 1)
        rows.slots[:n] = decodes
        rows.keep[:n] = 1
        rows.output_positions[:n] = slots.num_outputs[decodes]
        slots.num_computed[decodes] += 1
        slots.num_outputs[decodes] += 1

    def _fill_chunks(self, buffers: HostBuffers, plan: StepPlan) -> list[PromptSpan]:
        """Rows that compute known tokens; the spans whose prompt logprobs are asked for."""
        spans = []
        batch, rows = buffers.batch, buffers.rows
        slots, first, row = self._slots, len(plan.decode_slots), len(plan.decode_slots)
        for chunk in plan.chunks:
            n, slot = len(chunk.token_ids), chunk.slot
            tokens = slice(first, first + n)
            positions = np.arange(chunk.start, chunk.start + n, dtype=np.int32)
            batch.tokens[tokens] = chunk.token_ids
            batch.positions[tokens] = positions
            blocks = slots.block_tables[:, slot, positions // self._block_size]  # [G, n]
            batch.write_slots[:, tokens] = blocks * self._block_size + positions % self._block_size
            if targets := self._prompt_targets(chunk):
                sequence = slots.sequences[slot]
                assert sequence is not None
                spans.append(PromptSpan(sequence, first, chunk.start + 1, targets))
            first += n
            batch.query_starts[row + 1] = first
            rows.slots[row] = slot
            rows.keep[row] = chunk.samples
            rows.output_positions[row] = slots.num_outputs[slot]
            slots.num_computed[slot] = chunk.start + n
            slots.num_outputs[slot] += chunk.samples
            row += 1
        return spans

    def _fill_rows(self, buffers: HostBuffers, rows: int) -> None:
        """What a row needs beside its tokens, for all rows at once."""
        batch, slots = buffers.batch, self._slots
        used = buffers.rows.slots[: len(batch.context_lens)]
        batch.query_starts[rows + 1 :] = batch.query_starts[rows]
        batch.context_lens[:] = slots.num_computed[used]
        # Without a mode, take() would buffer what it writes.
        slots.block_tables.take(used, 1, batch.block_tables, "clip")
        buffers.rows.ints[:] = slots.sampling_ints[buffers.rows.slots]
        buffers.rows.floats[:] = slots.sampling_floats[buffers.rows.slots]

    def _start(
        self,
        bucket: Bucket,
        buffers: HostBuffers,
        rows: int,
        spans: list[PromptSpan],
        pooled: dict[Sequence, int] | None,
        awaits: bool = False,
    ) -> Started:
        step, self._last = self._steps[bucket], bucket
        self._state, x, drawn = step.layers(self._params, self._state, buffers.ints)
        return Started(step, buffers, rows, x, drawn, spans, pooled, awaits)

    def _prompt_logprobs(
        self, step: Step, x: jax.Array, spans: list[PromptSpan]
    ) -> dict[int, Logprobs[jax.Array]]:
        """The logprobs of the rows that spans lie in, by piece."""
        pieces: dict[int, np.ndarray] = {}
        for span in spans:
            for row, token in enumerate(span.token_ids, span.first):
                piece = pieces.setdefault(row // PIECE, np.zeros(PIECE, np.int32))
                piece[row % PIECE] = token
        return {
            n: step.prompt_logprobs(self._params, x, n * PIECE, targets)
            for n, targets in pieces.items()
        }
