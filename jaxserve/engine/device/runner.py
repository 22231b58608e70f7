"""Runner: turns a plan into padded arrays and runs the compiled step on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import jax
import numpy as np

from jaxserve.engine.device.buckets import Bucket, BucketTable
from jaxserve.engine.device.layer_groups import SplitParams
from jaxserve.engine.device.pending_step import PendingStep, PromptSpan
from jaxserve.engine.device.sampling_state import SamplingState
from jaxserve.engine.device.slot_table import SlotTable
from jaxserve.engine.device.step import PIECE, CopyBlocks, Step, StepState
from jaxserve.engine.device.step_batch import ENTRIES, DrawRows, StepInts, int_shapes, size, split
from jaxserve.errors import JaxserveError
from jaxserve.sampling.logprobs import Logprobs
from jaxserve.sampling.row_settings import NUM_LOGPROBS
from scheduler import Chunk, Sequence, StepPlan

_NO_ENTRIES = np.zeros((4, 0), np.int32)


@dataclass(slots=True)
class HostBuffers:
    """One bucket's buffer and the named views into it."""

    ints: np.ndarray
    batch: StepInts[np.ndarray]
    rows: DrawRows[np.ndarray]

    @classmethod
    def allocate(cls, bucket: Bucket) -> HostBuffers:
        shapes = int_shapes(bucket)
        ints = np.zeros(size(shapes), np.int32)
        batch = StepInts(*split(ints, shapes))
        return cls(ints, batch, DrawRows.of(batch.draws))

    def packs(self, entries: np.ndarray, spare: int) -> list[np.ndarray]:
        """Copies for the device, the last with the last of the entries [4, n]: it may still read
        them when the buffer is filled anew."""
        packs = []
        for first in range(0, max(1, entries.shape[1]), ENTRIES):
            some = entries[:, first : first + ENTRIES]
            self.batch.entries.fill(spare + 1)
            self.batch.entries[:, : some.shape[1]] = some
            packs.append(self.ints.copy())
        return packs


@dataclass(frozen=True, slots=True)
class Started:
    """A step whose layers are dispatched, and whose draw is still to come.

    Args:
        buffers: its host arrays, until the next is dispatched.
        rows: the plan's rows; the rest is padding.
        x: [T, E], the last layer's output.
        drawn: [R, E], its rows that are drawn from.
        draws: [R, DRAW_COLUMNS], how.
        spans: prompt tokens whose logprobs are asked for.
        pooled: rows whose embeddings are asked for; None if there is none.
        awaits_tokens: what a row may draw depends on a token that may be in flight.
    """

    step: Step
    buffers: HostBuffers
    rows: int
    x: jax.Array
    drawn: jax.Array
    draws: jax.Array
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
        params: SplitParams,
        new_state: Callable[[], StepState],
        slots: SlotTable,
    ) -> None:
        self._steps, self._table, self._params = steps, table, params
        # Compiled for good: a state is made after ready, too, and what jit keeps it may forget.
        self._new_state, self._slots = jax.jit(new_state).lower().compile(), slots
        self._state: StepState = self._new_state()
        self._sampling = SamplingState(self._state.tables)
        self._copy, self._on_cpu = copy, jax.default_backend() == "cpu"
        self._buffers = {bucket: HostBuffers.allocate(bucket) for bucket in steps}
        self._counted = np.arange(slots.spare + 2, dtype=np.int32)
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

    def is_settled(self, slots: tuple[int, ...], steps: int) -> bool:
        """Whether the next tokens of these slots, so many, can't end an output, nor change what
        may follow them."""
        rows, table = list(slots), self._slots
        left = table.settled_until[rows] - table.rows.output_positions[rows]
        return bool(left.min() >= steps)

    def dispatch_several(self, plans: list[StepPlan]) -> PendingStep:
        """Starts several steps in one dispatch: decodes of the same rows, which are settled, and
        nothing else."""
        first, more = plans[0], len(plans) - 1
        bucket = self._table.pick(first.num_tokens, first.num_tokens)
        step, buffers, self._last = self._steps[bucket], self._buffers[bucket], bucket
        self._fill(buffers, first)
        slots = np.array(first.decode_slots)
        self._slots.num_computed[slots] += more
        self._slots.rows.output_positions[slots] += more
        packs = buffers.packs(np.concatenate(list(map(_entries, plans)), 1), self._slots.spare)
        self._state, output = step.several(self._params, self._state, *packs)
        return self._sent(PendingStep(output, first.num_tokens, self._asking(buffers)))

    def dispatch(self, plan: StepPlan) -> Started:
        """Starts a step's layers and returns without waiting for the device."""
        if plan.copies:
            pages = self._copy(self._state.pages, plan.copies)
            self._state = self._state._replace(pages=pages)
        for start in plan.starts:
            self._sampling.start(start)
            self._slots.occupy(start)
        pooled = self._pooled_rows(plan)
        asks = bool(pooled) or any(map(self._prompt_targets, plan.chunks))
        rows = len(plan.decode_slots) + len(plan.chunks)
        bucket = self._table.pick(plan.num_tokens, rows, mixed=asks)
        buffers = self._buffers[bucket]
        spans = self._fill(buffers, plan)
        awaits = self._sampling.awaits_tokens(plan.decode_slots)
        return self._start(bucket, buffers, _entries(plan), rows, spans, pooled, awaits)

    def mask(self, started: Started, meanwhile: Callable[[], None] | None = None) -> None:
        """Builds what rules tokens out of the draw of the step dispatched last. If that awaits
        tokens, all those of the steps before it must be known.

        Args:
            meanwhile: as of SamplingState.advance().
        """
        if self._sampling.masking:
            rows = started.buffers.rows
            sampled = rows.keep > 0
            self._sampling.advance(rows.slots[sampled], rows.output_positions[sampled], meanwhile)

    def draw(self, started: Started) -> PendingStep:
        """Starts the draw of the step dispatched last, once its masks are built."""
        step = started.step
        state = self._state._replace(tables=self._sampling.upload(self._state.tables))
        self._state, output = step.sample(self._params, state, started.drawn, started.draws)
        spans, asking = started.spans, self._asking(started.buffers)
        prompt = self._prompt_logprobs(step, started.x, spans) if spans else {}
        handle = PendingStep(output, started.rows, asking, spans, prompt)
        if started.pooled is not None:
            assert step.pool is not None
            handle.pooled_rows = started.pooled
            handle.pooled = step.pool(self._params.ends, started.drawn)
        return self._sent(handle)

    def _sent(self, handle: PendingStep) -> PendingStep:
        if not self._on_cpu:  # whose arrays the host can read where they are
            handle.start_copies()
        return handle

    def _asking(self, buffers: HostBuffers) -> dict[Sequence, int]:
        """Rows of a filled buffer whose tokens' logprobs are asked for."""
        rows, sequences = buffers.rows, self._slots.sequences
        wanted = np.flatnonzero((rows.ints[:, NUM_LOGPROBS] >= 0) & (rows.keep > 0)).tolist()
        return {sequences[rows.slots[row]]: row for row in wanted}

    def _run_empty(self, bucket: Bucket) -> None:
        buffers = self._buffers[bucket]
        self._fill(buffers, StepPlan(-1))
        self.draw(
            self._start(bucket, buffers, _NO_ENTRIES, 0, [], None if bucket.decode else {})
        ).wait()
        if (step := self._steps[bucket]).repeat is not None:
            packs = buffers.packs(_NO_ENTRIES, self._slots.spare)
            self._state, output = step.several(self._params, self._state, *packs)
            PendingStep(output, 0).wait()

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

    def _fill(self, buffers: HostBuffers, plan: StepPlan) -> list[PromptSpan]:
        """Fills a bucket's arrays with a plan; the spans whose prompt logprobs are asked for."""
        batch, table, spans = buffers.batch, self._slots, []
        decodes = np.array(plan.decode_slots, np.int32)
        n, first = len(decodes), len(decodes)
        slots = np.full(len(batch.draws), table.spare)
        slots[:n] = decodes
        batch.tokens[:n] = -1 - decodes  # rows that continue from a token that the device holds
        table.num_computed[decodes] += 1
        batch.query_starts[: n + 1] = self._counted[: n + 1]
        for row, chunk in enumerate(plan.chunks, n):
            stop = first + len(chunk.token_ids)
            batch.tokens[first:stop] = chunk.token_ids
            if targets := self._prompt_targets(chunk):
                sequence = table.sequences[chunk.slot]
                assert sequence is not None
                spans.append(PromptSpan(sequence, first, chunk.start + 1, targets))
            first = stop
            batch.query_starts[row + 1] = first
            slots[row] = chunk.slot
            table.num_computed[chunk.slot] = chunk.start + len(chunk.token_ids)
        rows = n + len(plan.chunks)
        batch.tokens[first:] = 0
        batch.query_starts[rows + 1 :] = first
        batch.slots[:] = slots[: len(batch.slots)]
        batch.context_lens[:] = table.num_computed[batch.slots]
        # Without a mode, take() would buffer what it writes.
        table.draws.take(slots, 0, batch.draws, "clip")
        for row, chunk in enumerate(plan.chunks, n):
            buffers.rows.keep[row] = chunk.samples
        table.rows.output_positions[slots[:rows]] += buffers.rows.keep[:rows]
        return spans

    def _start(
        self,
        bucket: Bucket,
        buffers: HostBuffers,
        entries: np.ndarray,
        rows: int,
        spans: list[PromptSpan],
        pooled: dict[Sequence, int] | None,
        awaits: bool = False,
    ) -> Started:
        step, self._last = self._steps[bucket], bucket
        packs = buffers.packs(entries, self._slots.spare)
        self._state, x, drawn, draws = step.layers(self._params, self._state, *packs)
        return Started(step, buffers, rows, x, drawn, draws, spans, pooled, awaits)

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


def _entries(plan: StepPlan) -> np.ndarray:
    """[4, n], what a plan writes into the block tables, as its new_blocks."""
    if not (plan.starts or plan.new_blocks):
        return _NO_ENTRIES
    news = [np.array(plan.new_blocks, np.int32).reshape(-1, 4).T]
    for start in plan.starts:
        for group, blocks in enumerate(start.block_ids):
            own = np.empty((4, len(blocks)), np.int32)
            own[0], own[1], own[2], own[3] = start.slot, group, np.arange(len(blocks)), blocks
            news.append(own)
    return np.concatenate(news, 1)
