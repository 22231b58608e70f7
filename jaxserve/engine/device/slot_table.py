"""SlotTable: what the host knows of each slot, to fill a step's arrays."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np

from jaxserve.engine.device.sampling_state import SamplingRequest, settled_until
from jaxserve.engine.device.step_batch import DRAW_COLUMNS, DrawRows
from jaxserve.sampling.row_settings import GREEDY_FLOATS, GREEDY_INTS, pack
from scheduler import Sequence, SlotStart


class SlotTable:
    """One row a slot, plus a spare last row that padding points at.

    Each plan's changes keep it up to date: a step costs no pass over all sequences. What depends on
    a sequence's position is computed from `num_computed` alone.

    num_computed: [N+1] int32, tokens of each slot's sequence whose KV is computed by the steps that
        are dispatched.
    settled_until: [N+1] int32, see sampling_state.settled_until().
    draws: [N+1, DRAW_COLUMNS] int32, what the sampler takes of a row that decodes, but for the
        output position.
    sequences: the last occupant of each slot.
    no_adapter: what `adapters` has for a sequence without one.

    Args:
        adapter_slots: adapters on the device at once.
    """

    def __init__(self, max_num_seqs: int, adapter_slots: int = 0) -> None:
        count = max_num_seqs + 1
        self.spare = max_num_seqs
        self.num_computed = np.zeros(count, np.int32)
        self._num_prompt = np.zeros(count, np.int32)
        self.settled_until = np.zeros(count, np.int32)
        self.draws = np.zeros((count, DRAW_COLUMNS), np.int32)
        self._rows = DrawRows.of(self.draws)
        self._rows.slots[:] = np.arange(count)
        self._rows.keep[: self.spare] = 1
        self._rows.ints[:], self._rows.floats[:] = GREEDY_INTS, GREEDY_FLOATS
        self.no_adapter = adapter_slots
        self._rows.adapters[:] = adapter_slots
        self.sequences: list[Sequence | None] = [None] * count

    def occupy(self, start: SlotStart) -> None:
        """Sets a slot's row for its new occupant."""
        slot, sequence = start.slot, start.sequence
        request: SamplingRequest = sequence.request.payload
        self.num_computed[slot] = start.num_computed_tokens
        self._num_prompt[slot] = len(sequence.request.prompt_token_ids)
        self.settled_until[slot] = settled_until(sequence.request)
        self._rows.ints[slot], self._rows.floats[slot] = pack(
            request.params, sequence.index, request.masks is not None
        )
        adapter = start.adapter_slot
        self._rows.adapters[slot] = self.no_adapter if adapter is None else adapter
        self.sequences[slot] = sequence

    @property
    def adapters(self) -> np.ndarray:
        """[N+1] int32, the adapter slot of each slot's sequence."""
        adapters: np.ndarray = self._rows.adapters
        return adapters

    def output_positions(self, slots: np.ndarray) -> np.ndarray:
        """The output position that the last dispatched step draws for each of these slots;
        negative before the end of the prompt, where nothing drawn is kept."""
        positions: np.ndarray = self.num_computed[slots] - self._num_prompt[slots]
        return positions

    def next_output_positions(self, slots: SequenceOf[int] | np.ndarray) -> np.ndarray:
        """The output position that the next step draws for each of these slots, which decode."""
        return self.output_positions(np.asarray(slots)) + 1
