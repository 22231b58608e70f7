"""DecodeRows: the sequences that get one token in every step, handled together.

In most steps nothing changes for most of them, and the steps in which something does are known in
advance: a sequence that computes position p in step s is at p + k in step s + k, so it begins a
block every block_size steps, and its last step by length is known from the start. So a step costs
Python work only for the rows at which something changes, and a few passes in C over the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.request import Sequence, Status


@dataclass(frozen=True, slots=True)
class RowBatch:
    """The decode rows of one step, parallel. All steps until the rows change share one object."""

    slots: tuple[int, ...]
    sequences: list[Sequence]
    outputs: list[list[int]]  # each sequence's output_token_ids


class DecodeRows:
    """Rows in no particular order, so that one is removed in O(1)."""

    def __init__(self, block_size: int) -> None:
        self._slots: list[int] = []
        self._sequences: list[Sequence] = []
        self._outputs: list[list[int]] = []
        self._batch: RowBatch | None = RowBatch((), [], [])
        # Rows by the step, modulo block_size, in which they begin a block.
        self._by_phase: list[dict[Sequence, None]] = [{} for _ in range(block_size)]
        self._by_end: dict[int, dict[Sequence, None]] = {}

    def add(self, sequence: Sequence, step: int, position: int, num_tokens: int) -> None:
        """From `step` on it computes a token a step, first at `position`, num_tokens at most."""
        sequence.status = Status.DECODE
        sequence.decode_offset = step - position
        sequence.end_step = step + num_tokens
        sequence.row = len(self._sequences)
        self._slots.append(sequence.slot)
        self._sequences.append(sequence)
        self._outputs.append(sequence.output_token_ids)
        self._by_phase[sequence.decode_offset % len(self._by_phase)][sequence] = None
        self._by_end.setdefault(sequence.end_step, {})[sequence] = None
        self._batch = None

    def remove(self, sequence: Sequence, step: int) -> None:
        """Removes it before the rows of `step` are planned. The caller sets its next status."""
        sequence.num_computed = step - sequence.decode_offset
        row, last = sequence.row, self._sequences[-1]
        self._slots[row], self._sequences[row], self._outputs[row] = (
            last.slot,
            last,
            last.output_token_ids,
        )
        last.row, sequence.row = row, -1
        self._slots.pop()
        self._sequences.pop()
        self._outputs.pop()
        del self._by_phase[sequence.decode_offset % len(self._by_phase)][sequence]
        ending = self._by_end[sequence.end_step]
        del ending[sequence]
        if not ending:
            del self._by_end[sequence.end_step]
        self._batch = None

    def beginning_block(self, step: int) -> list[Sequence]:
        """Rows that compute the first token of a block in this step."""
        return list(self._by_phase[step % len(self._by_phase)])

    def ended_before(self, step: int) -> list[Sequence]:
        """Rows whose last token, by length, was planned in the step before this one."""
        return list(self._by_end.get(step, ()))

    def all_decode_until(self, step: int, end: int) -> bool:
        """Whether there are rows, and each has a token in all of the steps [step, end)."""
        return min(self._by_end, default=step) >= end

    def num_blocks_begun(self, step: int, steps: int) -> int:
        """Blocks a cache group that these rows begin in the next `steps` steps from `step` on."""
        phases = self._by_phase
        return sum(len(phases[at % len(phases)]) for at in range(step, step + steps))

    def batch(self) -> RowBatch:
        """The rows as they are now."""
        if self._batch is None:
            self._batch = RowBatch(tuple(self._slots), self._sequences[:], self._outputs[:])
        return self._batch
