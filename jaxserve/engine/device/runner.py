"""Runner: turns a plan into padded arrays and runs the compiled step on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import jax
import numpy as np

from jaxserve.engine.device.adapters.slot_writer import SlotWriter
from jaxserve.engine.device.buckets import Bucket, BucketTable
from jaxserve.engine.device.layer_groups import SplitParams
from jaxserve.engine.device.pending_step import PendingStep, PromptSpan, StepResults
from jaxserve.engine.device.sampling_state import SamplingState
from jaxserve.engine.device.slot_table import SlotTable
from jaxserve.engine.device.step import PIECE, CopyBlocks, Step, StepState
from jaxserve.engine.device.step_batch import HostBuffers
from jaxserve.engine.device.verify_rows import VerifyRows
from jaxserve.errors import JaxserveError
from jaxserve.sampling.logprobs import Logprobs
from jaxserve.sampling.row_settings import NUM_LOGPROBS
from scheduler import Chunk, Sequence, StepPlan

GUESS_MASKS_S = 0.02  # for all masks after guesses of a step; the guesses past that are dropped
_NO_ENTRIES = np.zeros((4, 0), np.int32)


class Runner:
    """Owns the device state: parameters, KV pages, each slot's last token and sampling tables.

    Args:
        steps: the compiled step of each bucket, without adapters and with them.
        copy: copies blocks of the pool.
        params: the model's parameters.
        new_state: makes an empty state, which each step takes over (donation) and replaces.
        slots: what the host knows of each slot.
        adapters: the adapter slots, if there are any.
    """

    def __init__(
        self,
        steps: dict[tuple[Bucket, bool], Step],
        copy: CopyBlocks,
        table: BucketTable,
        params: SplitParams,
        new_state: Callable[[], StepState],
        slots: SlotTable,
        adapters: SlotWriter | None = None,
    ) -> None:
        self._steps, self._table, self._params = steps, table, params
        # Compiled ahead of time, since reset() makes a state after the engine is ready, and the
        # cache of jax.jit may have dropped the program by then.
        self._new_state, self._slots = jax.jit(new_state).lower().compile(), slots
        self._state: StepState = self._new_state()
        self._sampling = SamplingState(self._state.tables)
        self._copy, self._on_cpu = copy, jax.default_backend() == "cpu"
        self._adapters = adapters
        self._buffers = {bucket: HostBuffers.allocate(bucket) for bucket in table.all}
        self._arange = np.arange(slots.spare + 2, dtype=np.int32)
        self._last_bucket = table.decode[0]  # of the step that was dispatched last

    def warm_up(self, buckets: Iterable[Bucket]) -> None:
        """Runs the programs of some buckets once, on padding alone, and those that copy blocks and
        write sampling tables."""
        for bucket in buckets:
            self._run_empty(bucket)
        if self._adapters is not None:
            self._adapters.warm_up()
        pages = self._copy(self._state.pages, ((0, 0),))
        tables = self._sampling.warm_up(self._state.tables)
        self._state = self._state._replace(pages=pages, tables=tables)

    def reset(self) -> None:
        """Makes an empty state in place of one that was lost with a failed step, and runs the
        programs of that step on padding alone.

        Raises:
            Exception: the programs fail even then.
        """
        for array in jax.tree.leaves(self._state):
            array.delete()  # first: there may be no room for both
        self._state = self._new_state()
        if self._adapters is not None:
            self._adapters.reset()
        self._sampling.clear()
        self._run_empty(self._last_bucket)

    def is_settled(self, slots: tuple[int, ...], steps: int) -> bool:
        """Whether the next `steps` tokens of each of these slots, which decode, can neither end an
        output nor change what may be drawn after them."""
        rows, table = list(slots), self._slots
        left = table.settled_until[rows] - table.next_output_positions(rows)
        return bool(left.min() >= steps)

    def dispatch_several(self, step: PendingStep) -> None:
        """Dispatches layers and draws of several plans as one program. They decode the same rows,
        which are settled (is_settled()), and nothing else. Doesn't wait for the device."""
        first, more = step.plans[0], len(step.plans) - 1
        step.bucket = self._last_bucket = self._table.pick(first.num_tokens, first.num_tokens)
        buffers = self._buffers[step.bucket]
        self._fill(buffers, first)
        self._slots.num_computed[list(first.decode_slots)] += more
        entries = np.concatenate([_table_entries(plan) for plan in step.plans], 1)
        uploads = buffers.uploads(entries, self._slots.spare)
        step.adapted = self._is_adapted(buffers)
        program, params = self._program(step)
        self._state, step.output = program.several(params, self._state, *uploads)
        step.logprob_rows = self._logprob_rows(buffers)
        self._start_copies(step)

    def dispatch(self, step: PendingStep) -> None:
        """Dispatches the layers of a step of one plan. Doesn't wait for the device."""
        (plan,) = step.plans
        if plan.copies:
            pages = self._copy(self._state.pages, plan.copies)
            self._state = self._state._replace(pages=pages)
        for slot, sequence in plan.loads:
            assert self._adapters is not None
            self._adapters.write(slot, sequence.request.payload.adapter)
        for start in plan.starts:
            self._sampling.start(start)
            self._slots.occupy(start)
        step.pooled_rows = self._pooled_rows(plan)
        asks = bool(step.pooled_rows) or any(map(self._prompt_targets, plan.chunks))
        if plan.drafts:
            step.verify = VerifyRows.of(plan, self._slots)
            step.bucket = self._table.pick_verify(plan.num_tokens)
        else:
            step.bucket = self._table.pick(plan.num_tokens, step.rows, mixed=asks)
        self._fill_step(step)
        step.adapted = self._is_adapted(self._buffers[step.bucket])
        step.awaits_tokens = self._sampling.awaits_tokens(plan.decode_slots)
        self._dispatch_layers(step, _table_entries(plan))

    def mask(self, step: PendingStep, meanwhile: Callable[[], None] | None = None) -> None:
        """Builds the token masks of the step that was dispatched last. If it awaits tokens, those
        of all steps before it must be known.

        Args:
            meanwhile: as of SamplingState.advance().
        """
        if not self._sampling.has_masks:
            return
        rows = self._buffers[step.bucket].rows
        sampled = rows.keep > 0
        if step.verify is not None:
            sampled[: step.rows] &= step.verify.offsets == 0
        self._sampling.advance(rows.slots[sampled], rows.output_positions[sampled], meanwhile)
        if step.verify is not None:
            first, until = self._slots.spare + 2, time.monotonic() + GUESS_MASKS_S
            for draft in step.verify.drafts:
                self._sampling.add_guess_masks(
                    draft.slot, draft.position, draft.guesses, first + draft.first, until
                )

    def count_taken(self, step: PendingStep, results: list[StepResults]) -> None:
        """Takes note of the guesses that a step's sequences got, before these are planned again."""
        if step.verify is not None:
            step.verify.count_taken(results[0].drafted, self._slots)

    def draw(self, step: PendingStep) -> None:
        """Dispatches the draw of the step that was dispatched last, once its masks are built."""
        assert step.layers is not None
        (program, params), layers = self._program(step), step.layers
        state = self._state._replace(tables=self._sampling.upload(self._state.tables))
        self._state, step.output = program.sample(params, state, layers)
        step.logprob_rows = self._logprob_rows(self._buffers[step.bucket])
        if step.prompt_spans:
            step.prompt_pieces = self._prompt_logprobs(step, layers.hidden)
        if step.pooled_rows:
            assert program.pool is not None
            step.pooled = program.pool(self._params.outer, layers.drawn)
        step.layers = None
        self._start_copies(step)

    def _start_copies(self, step: PendingStep) -> None:
        if not self._on_cpu:  # where the host reads the arrays in place
            step.start_copies()

    def _logprob_rows(self, buffers: HostBuffers) -> dict[Sequence, list[int]]:
        """Rows of a filled buffer whose tokens' logprobs are asked for."""
        rows, sequences = buffers.rows, self._slots.sequences
        wanted = np.flatnonzero((rows.ints[:, NUM_LOGPROBS] >= 0) & (rows.keep > 0)).tolist()
        found: dict[Sequence, list[int]] = {}
        for row in wanted:
            sequence = sequences[rows.slots[row]]
            assert sequence is not None
            found.setdefault(sequence, []).append(row)
        return found

    def _is_adapted(self, buffers: HostBuffers) -> bool:
        """Whether a row of a filled buffer has an adapter."""
        return bool((buffers.rows.adapters != self._slots.no_adapter).any())

    def _program(self, step: PendingStep) -> tuple[Step, SplitParams]:
        """The programs of a step, and the parameters that they take."""
        program = self._steps[step.bucket, step.adapted]
        if not step.adapted:
            return program, self._params
        assert self._adapters is not None
        return program, self._adapters.params

    def _run_empty(self, bucket: Bucket) -> None:
        """Runs all programs of a bucket on padding alone, and waits for them."""
        for adapted in (False,) if self._adapters is None else (False, True):
            self._run_padding(bucket, adapted)

    def _run_padding(self, bucket: Bucket, adapted: bool) -> None:
        buffers = self._buffers[bucket]
        step = PendingStep([StepPlan(-1)], adapted=adapted)
        step.bucket = bucket
        program, params = self._program(step)
        if bucket.guesses:
            step.verify = VerifyRows.of(step.plans[0], self._slots)
        self._fill_step(step)
        self._dispatch_layers(step, _NO_ENTRIES)
        if program.pool is not None:
            assert step.layers is not None
            program.pool(self._params.outer, step.layers.drawn).block_until_ready()
        self.draw(step)
        step.wait()
        if program.repeat is not None:
            uploads = buffers.uploads(_NO_ENTRIES, self._slots.spare)
            self._state, step.output = program.several(params, self._state, *uploads)
            step.wait()

    def take_failures(self) -> list[tuple[Sequence, JaxserveError]]:
        """Sequences whose masks or sampling settings failed since the last call, and why."""
        failed, self._sampling.failed = self._sampling.failed, []
        return failed

    def _prompt_targets(self, chunk: Chunk) -> list[int]:
        """The prompt tokens that the chunk's rows predict, if their logprobs are asked for."""
        sequence = self._slots.sequences[chunk.slot]
        assert sequence is not None
        request = sequence.request
        if request.payload.params.prompt_logprobs is None or sequence.index:
            return []
        stop = chunk.start + len(chunk.token_ids)
        return request.prompt_token_ids[chunk.start + 1 : stop + 1]

    def _pooled_rows(self, plan: StepPlan) -> dict[Sequence, int]:
        """The rows that end a prompt of which an embedding is asked for."""
        rows = {}
        for row, chunk in enumerate(plan.chunks, len(plan.decode_slots)):
            sequence = self._slots.sequences[chunk.slot]
            if chunk.samples and sequence is not None and sequence.request.payload.pool:
                rows[sequence] = row
        return rows

    def _fill_step(self, step: PendingStep) -> None:
        """Fills the arrays of a step of one plan."""
        buffers = self._buffers[step.bucket]
        if step.verify is not None:
            step.verify.fill(buffers, self._slots)
        else:
            step.prompt_spans = self._fill(buffers, step.plans[0])

    def _fill(self, buffers: HostBuffers, plan: StepPlan) -> list[PromptSpan]:
        """Fills a bucket's arrays with a plan; the spans whose prompt logprobs are asked for."""
        batch, table, spans = buffers.batch, self._slots, []
        decodes = np.array(plan.decode_slots, np.int32)
        n, first = len(decodes), len(decodes)
        slots = np.full(len(batch.draws), table.spare)
        slots[:n] = decodes
        batch.tokens[:n] = -1 - decodes  # rows that continue from a token that the device holds
        table.num_computed[decodes] += 1
        batch.query_starts[: n + 1] = self._arange[: n + 1]
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
        buffers.rows.output_positions[:] = table.output_positions(slots)
        for row, chunk in enumerate(plan.chunks, n):
            buffers.rows.keep[row] = chunk.samples
        return spans

    def _dispatch_layers(self, step: PendingStep, entries: np.ndarray) -> None:
        """Dispatches the layers of a step whose buffers are filled.

        Args:
            entries: [4, n], what is new in the block tables (see StepInts).
        """
        self._last_bucket = step.bucket
        uploads = self._buffers[step.bucket].uploads(entries, self._slots.spare)
        program, params = self._program(step)
        self._state, step.layers = program.layers(params, self._state, *uploads)

    def _prompt_logprobs(
        self, step: PendingStep, hidden: jax.Array
    ) -> dict[int, Logprobs[jax.Array]]:
        """The logprobs of the rows of the hidden states [T, E] that the step's spans lie in, by
        piece."""
        none = np.array([[0], [self._slots.no_adapter]], np.int32)
        pieces: dict[int, np.ndarray] = {}  # [2, PIECE]: tokens, and adapter slots
        for span in step.prompt_spans:
            adapter = self._slots.adapters[span.sequence.slot]
            for row, token in enumerate(span.token_ids, span.first):
                piece = pieces.setdefault(row // PIECE, np.repeat(none, PIECE, 1))
                piece[:, row % PIECE] = token, adapter
        program, params = self._program(step)
        return {
            n: program.prompt_logprobs(params, hidden, n * PIECE, *piece)
            for n, piece in pieces.items()
        }


def _table_entries(plan: StepPlan) -> np.ndarray:
    """[4, n] int32, what a plan writes into the block tables, with the rows of
    StepPlan.new_blocks."""
    if not (plan.starts or plan.new_blocks):
        return _NO_ENTRIES
    parts = [np.array(plan.new_blocks, np.int32).reshape(-1, 4).T]
    for start in plan.starts:
        for group, blocks in enumerate(start.block_ids):
            own = np.empty((4, len(blocks)), np.int32)
            own[0], own[1], own[2], own[3] = start.slot, group, np.arange(len(blocks)), blocks
            parts.append(own)
    return np.concatenate(parts, 1)
