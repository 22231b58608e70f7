"""Runner: turns a plan into padded arrays and runs the compiled step on the device."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Compiled

from jaxserve.engine.batch import StepInts, float_shape, int_shapes, size, split
from jaxserve.engine.buckets import Bucket, BucketTable
from jaxserve.engine.handle import PromptSpan, StepHandle
from jaxserve.engine.paged_cache import Pages
from jaxserve.engine.sampling_state import SamplingState
from jaxserve.engine.slots import SlotTable
from jaxserve.engine.step import StepState
from jaxserve.sampling.rows import NUM_LOGPROBS
from pallas_kernels import copy_blocks
from scheduler import Chunk, Sequence, StepPlan

COPIES = 16  # blocks that one call copies


@dataclass(slots=True)
class HostBuffers:
    """One bucket's host arrays and the named views into them."""

    ints: np.ndarray
    floats: np.ndarray
    batch: StepInts[np.ndarray]

    @classmethod
    def allocate(cls, bucket: Bucket, width: int, groups: int) -> HostBuffers:
        shapes = int_shapes(bucket, width, groups)
        ints = np.zeros(size(shapes), np.int32)
        floats = np.zeros(float_shape(bucket), np.float32)
        return cls(ints, floats, StepInts(*split(ints, shapes)))


class Runner:
    """Owns the device state: parameters, KV pages, each slot's last token and sampling tables.

    Args:
        steps: the compiled step of each bucket.
        params: leaves of the model's parameters.
        state: donated from step to step.
        slots: the host mirror.
    """

    def __init__(
        self,
        steps: dict[Bucket, Compiled],
        table: BucketTable,
        params: list[jax.Array],
        state: StepState,
        slots: SlotTable,
        block_size: int,
    ) -> None:
        self._steps, self._table, self._params = steps, table, params
        self._state, self._slots = state, slots
        self._sampling = SamplingState(state.tables)
        self._copy = _compile_copies(state.pages)
        self._block_size = block_size
        groups, _, width = slots.block_tables.shape
        # Two sets in turn: while a step may still read one, the next step fills the other.
        self._buffers = {
            b: [HostBuffers.allocate(b, width, groups) for _ in range(2)] for b in steps
        }
        self._turn = 0

    def warm_up(self) -> None:
        """Runs every bucket once with nothing but padding, so that no first use is slow."""
        for bucket in self._steps:
            buffers = self._empty(bucket)
            self._fill_rows(buffers, 0)
            self._run(bucket, buffers, 0, []).wait()
        self._copy_blocks(((0, 0),))
        self._state = self._state._replace(tables=self._sampling.warm_up(self._state.tables))

    def dispatch(self, plan: StepPlan) -> StepHandle:
        """Starts a step and returns without waiting for the device."""
        self._copy_blocks(plan.copies)
        for start in plan.starts:
            self._sampling.start(start)
        self._slots.apply(plan)
        rows = len(plan.decode_slots) + len(plan.chunks)
        asks = any(map(self._prompt_targets, plan.chunks))
        bucket = self._table.pick(plan.num_tokens, rows, mixed=asks)
        buffers = self._empty(bucket)
        self._fill_decodes(buffers.batch, np.array(plan.decode_slots, np.int32))
        spans = self._fill_chunks(buffers.batch, plan)
        self._fill_rows(buffers, rows)
        sampled = buffers.batch.keep > 0
        self._sampling.advance(
            buffers.batch.slots[sampled], buffers.batch.output_positions[sampled]
        )
        self._state = self._state._replace(tables=self._sampling.upload(self._state.tables))
        return self._run(bucket, buffers, rows, spans)

    def take_failures(self) -> list[tuple[Sequence, str]]:
        """Sequences that broke their grammar since the last call, and how."""
        failed, self._sampling.failed = self._sampling.failed, []
        return failed

    def _copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        for first in range(0, len(copies), COPIES):
            pairs = np.full((2, COPIES), [[0], [-1]], np.int32)  # -1 drops the copy
            some = copies[first : first + COPIES]
            pairs[:, : len(some)] = np.array(some, np.int32).T
            self._state = self._state._replace(pages=self._copy(self._state.pages, pairs))

    def _prompt_targets(self, chunk: Chunk) -> list[int]:
        """The prompt tokens after the chunk's first ones whose logprobs are asked for."""
        sequence = self._slots.sequences[chunk.slot]
        assert sequence is not None
        request = sequence.request
        if request.payload.params.prompt_logprobs is None or sequence.index:
            return []
        stop = chunk.start + len(chunk.token_ids)
        return request.prompt_token_ids[chunk.start + 1 : stop + 1]

    def _empty(self, bucket: Bucket) -> HostBuffers:
        self._turn ^= 1
        buffers = self._buffers[bucket][self._turn]
        buffers.ints.fill(0)
        buffers.floats.fill(0)
        buffers.batch.slots.fill(self._slots.spare)
        buffers.batch.write_slots.fill(-1)  # padding writes nowhere
        buffers.batch.targets.fill(-1)
        return buffers

    def _fill_decodes(self, batch: StepInts[np.ndarray], decodes: np.ndarray) -> None:
        """Rows that continue from their last token, which the device holds."""
        n, slots = len(decodes), self._slots
        positions = slots.num_computed[decodes]
        batch.tokens[:n] = -1 - decodes
        batch.positions[:n] = positions
        blocks = slots.block_tables[:, decodes, positions // self._block_size]  # [G, n]
        batch.write_slots[:, :n] = blocks * self._block_size + positions % self._block_size
        batch.query_starts[1 : n + 1] = np.arange(1, n + 1)
        batch.slots[:n] = decodes
        batch.keep[:n] = 1
        batch.output_positions[:n] = slots.num_outputs[decodes]
        slots.num_computed[decodes] += 1
        slots.num_outputs[decodes] += 1

    def _fill_chunks(self, batch: StepInts[np.ndarray], plan: StepPlan) -> list[PromptSpan]:
        """Rows that compute known tokens; the spans whose prompt logprobs are asked for."""
        spans = []
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
                batch.targets[first : first + len(targets)] = targets
                sequence = slots.sequences[slot]
                assert sequence is not None
                spans.append(PromptSpan(sequence, first, chunk.start + 1, targets))
            first += n
            batch.query_starts[row + 1] = first
            batch.slots[row] = slot
            batch.keep[row] = chunk.samples
            batch.output_positions[row] = slots.num_outputs[slot]
            slots.num_computed[slot] = chunk.start + n
            slots.num_outputs[slot] += chunk.samples
            row += 1
        return spans

    def _fill_rows(self, buffers: HostBuffers, rows: int) -> None:
        """What a row needs beside its tokens, for all rows at once."""
        batch, slots = buffers.batch, self._slots
        batch.query_starts[rows + 1 :] = batch.query_starts[rows]
        batch.context_lens[:] = slots.num_computed[batch.slots]
        batch.settings[:] = slots.sampling_ints[batch.slots]
        # Without a mode, take() would buffer what it writes.
        slots.block_tables.take(batch.slots, 1, batch.block_tables, "clip")
        buffers.floats[:] = slots.sampling_floats[batch.slots]

    def _run(
        self, bucket: Bucket, buffers: HostBuffers, rows: int, spans: list[PromptSpan]
    ) -> StepHandle:
        self._state, output = self._steps[bucket](
            self._params, self._state, buffers.ints, buffers.floats
        )
        batch = buffers.batch
        wanted = np.flatnonzero((batch.settings[:, NUM_LOGPROBS] >= 0) & (batch.keep > 0)).tolist()
        sequences = {self._slots.sequences[batch.slots[row]]: row for row in wanted}
        handle = StepHandle(output, rows, sequences, spans)
        handle.start_copies()
        return handle


def _compile_copies(pages: Pages) -> Compiled:
    def copy(pages: Pages, pairs: jax.Array) -> Pages:
        return [copy_blocks(k, v, pairs[0], pairs[1]) for k, v in pages]

    pairs = jax.ShapeDtypeStruct((2, COPIES), jnp.int32)
    return jax.jit(copy, donate_argnums=0).lower(pages, pairs).compile()
