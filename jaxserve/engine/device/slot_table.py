"""Host mirror of the running sequences' rows: what the runner must know to fill a step's arrays."""

from __future__ import annotations

import numpy as np

from jaxserve.engine.device.sampling_state import SamplingRequest, settled_until
from jaxserve.engine.device.step_batch import DRAW_COLUMNS, DrawRows
from jaxserve.sampling.row_settings import GREEDY_FLOATS, GREEDY_INTS, pack
from scheduler import Sequence, SlotStart


class SlotTable:
    """One row a slot, plus a spare last row that padding points at.

    The plan's changes keep it up to date; nothing here is recomputed from whole state.

    num_computed: [N+1] int32, tokens of each slot's sequence whose KV is there.
    settled_until: [N+1] int32, see sampling_state.settled_until().
    draws: [N+1, DRAW_COLUMNS] int32, what the sampler takes of a row that decodes.
    rows: the columns of `draws`, of which output_positions are kept up to date.
    sequences: the last occupant of each slot.
    """

    def __init__(self, max_num_seqs: int) -> None:
        count = max_num_seqs + 1
        self.spare = max_num_seqs
        self.num_computed = np.zeros(count, np.int32)
        self.settled_until = np.zeros(count, np.int32)
        self.draws = np.zeros((count, DRAW_COLUMNS), np.int32)
        self.rows = DrawRows.of(self.draws)
        self.rows.slots[:] = np.arange(count)
        self.rows.keep[: self.spare] = 1
        self.rows.ints[:], self.rows.floats[:] = GREEDY_INTS, GREEDY_FLOATS
        self.sequences: list[Sequence | None] = [None] * count

    def occupy(self, start: SlotStart) -> None:
        """Takes in a slot's new occupant."""
        slot, sequence = start.slot, start.sequence
        request: SamplingRequest = sequence.request.payload
        self.num_computed[slot] = start.num_computed_tokens
        self.settled_until[slot] = settled_until(sequence.request)
        self.rows.output_positions[slot] = len(sequence.output_token_ids)
        self.rows.ints[slot], self.rows.floats[slot] = pack(
            request.params, sequence.index, request.masks is not None
        )
        self.sequences[slot] = sequence
