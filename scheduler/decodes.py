"""DecodeRows: the sequences that get one token in every step, handled in bulk.

Nothing happens to most of them in most steps. When something will is known in advance by step
number: a sequence that computes position p in step s is at p + k in step s + k, so it crosses a
block boundary every block_size steps, and ends by length in a step known at the start. So a step
costs work only for the rows at which something happens, and a few passes in C over the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.request import Sequence, Status


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one step, parallel. Shared by all steps until the rows change."""

    slots: tuple[int, ...]
    sequences: list[Sequence]
    outputs: list[list[int]]  # each sequence's output_token_ids


class DecodeRows:
    """Rows in no particular order, so that one is taken out in O(1)."""

    def __init__(self, block_size: int) -> None:
        self._slots: list[int] = []
        self._sequences: list[Sequence] = []
        self._outputs: list[list[int]] = []
        self._rows: Rows | None = Rows((), [], [])
        self._by_phase: list[dict[Sequence, None]] = [{} for _ in range(block_size)]
        self._by_end: dict[int, dict[Sequence, None]] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, sequence: Sequence, step: int, position: int, num_tokens: int) -> None:
        """From `step` on it computes a token a step, first at `position`, num_tokens at most."""
        sequence.status = Status.DECODE
        sequence.base = step - position
        sequence.end_step = step + num_tokens
        sequence.row = len(self._sequences)
        self._slots.append(sequence.slot)
        self._sequences.append(sequence)
        self._outputs.append(sequence.output_token_ids)
        self._by_phase[sequence.base % len(self._by_phase)][sequence] = None
        self._by_end.setdefault(sequence.end_step, {})[sequence] = None
        self._rows = None

    def remove(self, sequence: Sequence, step: int) -> None:
        """Takes it out before the rows of `step` are planned."""
        sequence.num_computed = step - sequence.base
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
        del self._by_phase[sequence.base % len(self._by_phase)][sequence]
        ending = self._by_end[sequence.end_step]
        del ending[sequence]
        if not ending:
            del self._by_end[sequence.end_step]
        self._rows = None

    def crossing(self, step: int) -> list[Sequence]:
        """Rows that compute the first token of a block in this step."""
        return list(self._by_phase[step % len(self._by_phase)])

    def ending(self, step: int) -> list[Sequence]:
        """Rows that got their last token by length in the step before this one."""
        return list(self._by_end.get(step, ()))

    def stay(self, step: int, steps: int) -> bool:
        """Whether there are rows, and all of them have a token in each step up to step + steps."""
        return min(self._by_end, default=step) >= step + steps

    def num_crossing(self, step: int, steps: int) -> int:
        """Blocks that rows begin in so many steps from this one on, if none is added or removed."""
        phases = self._by_phase
        return sum(len(phases[at % len(phases)]) for at in range(step, step + steps))

    def rows(self) -> Rows:
        if self._rows is None:
            self._rows = Rows(tuple(self._slots), self._sequences[:], self._outputs[:])
        return self._rows
