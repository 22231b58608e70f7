"""Host mirror of the running sequences' rows: what the runner must know to fill a step's arrays."""

from __future__ import annotations

import numpy as np

from jaxserve.sampling.params import SamplingParams
from scheduler import SlotStart, StepPlan


class SlotTable:
    """One row a slot, plus a spare last row that padding points at.

    The plan's changes keep it up to date; nothing here is recomputed from whole state.
    """

    def __init__(self, max_num_seqs: int, table_width: int) -> None:
        rows = max_num_seqs + 1
        self.spare = max_num_seqs
        self.block_tables = np.zeros((rows, table_width), np.int32)  # [N+1, W]
        self.num_computed = np.zeros(rows, np.int32)
        self.num_outputs = np.zeros(rows, np.int32)
        self.seeds = np.zeros((rows, 2), np.int32)
        self.top_k = np.zeros(rows, np.int32)
        self.temperature = np.zeros(rows, np.float32)
        self.top_p = np.ones(rows, np.float32)
        self.min_p = np.zeros(rows, np.float32)

    def apply(self, plan: StepPlan) -> None:
        """Takes in a plan's new occupants and grown block tables."""
        for start in plan.starts:
            self._occupy(start)
        for slot, _group, index, block in plan.new_blocks:
            self.block_tables[slot, index] = block

    def _occupy(self, start: SlotStart) -> None:
        slot, blocks = start.slot, start.block_ids[0]
        params: SamplingParams = start.sequence.request.payload
        self.block_tables[slot] = 0
        self.block_tables[slot, : len(blocks)] = blocks
        self.num_computed[slot] = start.num_computed_tokens
        self.num_outputs[slot] = len(start.sequence.output_token_ids)
        seed = (params.seed or 0) & 0xFFFF_FFFF_FFFF_FFFF
        self.seeds[slot] = np.array([seed >> 32, seed & 0xFFFF_FFFF], np.uint32).view(np.int32)
        self.top_k[slot] = params.top_k
        self.temperature[slot] = params.temperature
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
