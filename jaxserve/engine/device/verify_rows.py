"""VerifyRows: a plan with drafts as rows of single tokens, which are decodes to the kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxserve.engine.device.slot_table import SlotTable
from jaxserve.engine.device.step_batch import DRAW_COLUMNS, HostBuffers
from jaxserve.sampling.guesses import NO_GUESS, GuessRows, taken_ids
from scheduler import Sequence, StepPlan


@dataclass(frozen=True, slots=True)
class DraftRows:
    """The rows of one sequence's last token and of the guesses after it.

    Args:
        first: the first of these rows.
        position: index of the output token that the first row draws.
    """

    slot: int
    sequence: Sequence
    first: int
    position: int
    guesses: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VerifyRows:
    """The rows of a step that verifies guesses, R in all.

    Args:
        slots: [R].
        offsets: [R], each row's place among those of its sequence.
        firsts: [S], the first row of each of the plan's rows.
        drafts: the plan's drafts, in order.
    """

    slots: np.ndarray
    offsets: np.ndarray
    firsts: np.ndarray
    drafts: tuple[DraftRows, ...]

    @classmethod
    def of(cls, plan: StepPlan, table: SlotTable) -> VerifyRows:
        """Of a plan without chunks, before its tokens are counted in the table."""
        decodes = np.array(plan.decode_slots, np.int32)
        counts = np.ones(len(decodes), np.int32)
        for draft in plan.drafts:
            counts[draft.row] += len(draft.token_ids)
        firsts = np.cumsum(counts) - counts
        offsets = np.arange(counts.sum(), dtype=np.int32) - np.repeat(firsts, counts)
        positions = table.next_output_positions(decodes)
        drafts = []
        for draft in plan.drafts:
            row, slot = draft.row, plan.decode_slots[draft.row]
            sequence = table.sequences[slot]
            assert sequence is not None
            first, position = int(firsts[row]), int(positions[row])
            drafts.append(DraftRows(slot, sequence, first, position, draft.token_ids))
        return cls(np.repeat(decodes, counts), offsets, firsts, tuple(drafts))

    def fill(self, buffers: HostBuffers, table: SlotTable) -> None:
        """Fills the arrays of a bucket for guesses. Of each sequence, the table then counts the
        token that it got last."""
        batch, rows, used = buffers.batch, buffers.rows, len(self.slots)
        table.num_computed[self.slots[self.firsts]] += 1
        batch.tokens[:used] = -1 - self.slots
        batch.tokens[used:] = 0
        batch.query_starts[:] = np.minimum(np.arange(len(batch.query_starts)), used)
        batch.slots[:used], batch.slots[used:] = self.slots, table.spare
        batch.context_lens[:] = 0
        batch.context_lens[:used] = table.num_computed[self.slots] + self.offsets
        batch.draws[:, :DRAW_COLUMNS] = table.draws[batch.slots]
        rows.output_positions[:] = 0
        rows.output_positions[:used] = table.output_positions(self.slots) + self.offsets
        guesses = GuessRows.split(rows.guesses)
        guesses.mask_rows[:] = batch.slots
        guesses.following[:] = guesses.before[:] = NO_GUESS
        for draft in self.drafts:
            first, count = draft.first, len(draft.guesses)
            batch.tokens[first + 1 : first + 1 + count] = draft.guesses
            guesses.following[first : first + count] = draft.guesses
            for place in range(1, count + 1):
                guesses.before[first + place, :place] = draft.guesses[:place]
                guesses.mask_rows[first + place] = table.spare + 1 + first + place

    def taken(self, ids: list[int]) -> list[list[int]]:
        """The tokens that each draft's sequence gets, by what the rows drew."""
        return [taken_ids(ids[draft.first :], draft.guesses) for draft in self.drafts]

    def count_taken(self, taken: list[list[int]], table: SlotTable) -> None:
        """Counts the guesses that were taken in the table, unless the slot has another occupant
        since.

        Args:
            taken: what taken() has returned.
        """
        for draft, ids in zip(self.drafts, taken, strict=True):
            if table.sequences[draft.slot] is draft.sequence:
                table.num_computed[draft.slot] += len(ids) - 1
