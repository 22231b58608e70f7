"""Host mirror of the running sequences' rows: what the runner must know to fill a step's arrays."""

from __future__ import annotations

import numpy as np

from jaxserve.engine.sampling_state import SamplingRequest
from jaxserve.sampling.rows import GREEDY_FLOATS, GREEDY_INTS, pack
from scheduler import Sequence, SlotStart, StepPlan


class SlotTable:
    """One row a slot, plus a spare last row that padding points at.

    The plan's changes keep it up to date; nothing here is recomputed from whole state.
    """

    def __init__(self, max_num_seqs: int, table_width: int, num_groups: int) -> None:
        rows = max_num_seqs + 1
        self.spare = max_num_seqs
        self.block_tables = np.zeros((num_groups, rows, table_width), np.int32)  # [G, N+1, W]
        self.num_computed = np.zeros(rows, np.int32)
        self.num_outputs = np.zeros(rows, np.int32)
        self.sampling_ints = np.tile(np.array(GREEDY_INTS, np.int32), (rows, 1))
        self.sampling_floats = np.tile(np.array(GREEDY_FLOATS, np.float32), (rows, 1))
        self.sequences: list[Sequence | None] = [None] * rows  # the last occupant of each

    def apply(self, plan: StepPlan) -> None:
        """Takes in a plan's new occupants and grown block tables."""
        for start in plan.starts:
            self._occupy(start)
        for slot, group, index, block in plan.new_blocks:
            self.block_tables[group, slot, index] = block

    def _occupy(self, start: SlotStart) -> None:
        slot, sequence = start.slot, start.sequence
        request: SamplingRequest = sequence.request.payload
        self.block_tables[:, slot] = 0
        for group, blocks in enumerate(start.block_ids):
            self.block_tables[group, slot, : len(blocks)] = blocks
        self.num_computed[slot] = start.num_computed_tokens
        self.num_outputs[slot] = len(sequence.output_token_ids)
        self.sampling_ints[slot], self.sampling_floats[slot] = pack(
            request.params, sequence.index, request.masks is not None
        )
        self.sequences[slot] = sequence
