"""Runner: turns a plan into padded arrays and runs the compiled step on the device."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
from jax.stages import Compiled

from jaxserve.engine.batch import StepFloats, StepInts, float_shapes, int_shapes, size, split
from jaxserve.engine.buckets import Bucket, BucketTable
from jaxserve.engine.paged_cache import Pages
from jaxserve.engine.slots import SlotTable
from scheduler import StepPlan


@dataclass(frozen=True, slots=True)
class StepHandle:
    """A step in flight."""

    ids: jax.Array  # [S]
    rows: int

    def wait(self) -> list[int]:
        """One sampled id a row of the plan, once the device has them."""
        return np.asarray(self.ids)[: self.rows].tolist()


@dataclass(slots=True)
class HostBuffers:
    """One bucket's host arrays and the named views into them."""

    ints: np.ndarray
    floats: np.ndarray
    batch: StepInts[np.ndarray]
    settings: StepFloats[np.ndarray]

    @classmethod
    def allocate(cls, bucket: Bucket, width: int) -> HostBuffers:
        shapes = int_shapes(bucket, width)
        ints = np.zeros(size(shapes), np.int32)
        floats = np.zeros(size(float_shapes(bucket)), np.float32)
        return cls(
            ints,
            floats,
            StepInts(*split(ints, shapes)),
            StepFloats(*split(floats, float_shapes(bucket))),
        )


class Runner:
    """Owns the device state: parameters, KV pages, and each slot's last token.

    Args:
        steps: the compiled step of each bucket.
        params: leaves of the model's parameters.
        pages: the KV pool, donated from step to step.
        last_tokens: [N+1] int32.
        slots: the host mirror.
    """

    def __init__(
        self,
        steps: dict[Bucket, Compiled],
        table: BucketTable,
        params: list[jax.Array],
        pages: Pages,
        last_tokens: jax.Array,
        slots: SlotTable,
        block_size: int,
    ) -> None:
        self._steps, self._table, self._params = steps, table, params
        self._pages, self._last_tokens, self._slots = pages, last_tokens, slots
        self._block_size = block_size
        width = slots.block_tables.shape[1]
        # Two sets in turn: while a step may still read one, the next step fills the other.
        self._buffers = {b: [HostBuffers.allocate(b, width) for _ in range(2)] for b in steps}
        self._turn = 0

    def warm_up(self) -> None:
        """Runs every bucket once with nothing but padding, so that no first use is slow."""
        for bucket in self._steps:
            self._run(bucket, self._empty(bucket), 0).wait()

    def dispatch(self, plan: StepPlan) -> StepHandle:
        """Starts a step and returns without waiting for the device."""
        self._slots.apply(plan)
        rows = len(plan.decode_slots) + len(plan.chunks)
        bucket = self._table.pick(plan.num_tokens, rows)
        buffers = self._empty(bucket)
        self._fill_decodes(buffers.batch, np.array(plan.decode_slots, np.int32))
        self._fill_chunks(buffers.batch, plan)
        self._fill_rows(buffers, rows)
        return self._run(bucket, buffers, rows)

    def _empty(self, bucket: Bucket) -> HostBuffers:
        self._turn ^= 1
        buffers = self._buffers[bucket][self._turn]
        buffers.ints.fill(0)
        buffers.floats.fill(0)
        buffers.batch.slots.fill(self._slots.spare)
        buffers.batch.write_slots.fill(-1)  # padding writes nowhere
        return buffers

    def _fill_decodes(self, batch: StepInts[np.ndarray], decodes: np.ndarray) -> None:
        """Rows that continue from their last token, which the device holds."""
        n, slots = len(decodes), self._slots
        positions = slots.num_computed[decodes]
        batch.tokens[:n] = -1 - decodes
        batch.positions[:n] = positions
        blocks = slots.block_tables[decodes, positions // self._block_size]
        batch.write_slots[:n] = blocks * self._block_size + positions % self._block_size
        batch.query_starts[1 : n + 1] = np.arange(1, n + 1)
        batch.slots[:n] = decodes
        batch.keep[:n] = 1
        batch.output_positions[:n] = slots.num_outputs[decodes]
        slots.num_computed[decodes] += 1
        slots.num_outputs[decodes] += 1

    def _fill_chunks(self, batch: StepInts[np.ndarray], plan: StepPlan) -> None:
        """Rows that compute known tokens."""
        slots, first, row = self._slots, len(plan.decode_slots), len(plan.decode_slots)
        for chunk in plan.chunks:
            n, slot = len(chunk.token_ids), chunk.slot
            tokens = slice(first, first + n)
            positions = np.arange(chunk.start, chunk.start + n, dtype=np.int32)
            batch.tokens[tokens] = chunk.token_ids
            batch.positions[tokens] = positions
            blocks = slots.block_tables[slot, positions // self._block_size]
            batch.write_slots[tokens] = blocks * self._block_size + positions % self._block_size
            first += n
            batch.query_starts[row + 1] = first
            batch.slots[row] = slot
            batch.keep[row] = chunk.samples
            batch.output_positions[row] = slots.num_outputs[slot]
            slots.num_computed[slot] = chunk.start + n
            slots.num_outputs[slot] += chunk.samples
            row += 1

    def _fill_rows(self, buffers: HostBuffers, rows: int) -> None:
        """What a row needs beside its tokens, for all rows at once."""
        batch, settings, slots = buffers.batch, buffers.settings, self._slots
        used = batch.slots[:rows]
        batch.query_starts[rows + 1 :] = batch.query_starts[rows]
        batch.context_lens[:rows] = slots.num_computed[used]
        batch.seeds[:rows] = slots.seeds[used]
        batch.top_k[:rows] = slots.top_k[used]
        batch.block_tables[:rows] = slots.block_tables[used]
        settings.temperature[:rows] = slots.temperature[used]
        settings.top_p[:rows] = slots.top_p[used]
        settings.min_p[:rows] = slots.min_p[used]

    def _run(self, bucket: Bucket, buffers: HostBuffers, rows: int) -> StepHandle:
        self._pages, self._last_tokens, ids = self._steps[bucket](
            self._params, self._pages, self._last_tokens, buffers.ints, buffers.floats
        )
        ids.copy_to_host_async()
        return StepHandle(ids, rows)
