"""AdapterTurns: a queue in which those whose adapter finds no slot let others pass, for a while."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from scheduler.policies import Fcfs, Key
from scheduler.request import Sequence


class AdapterTurns(Fcfs):
    """Another policy's queue, in whose order sequences start whose adapter has a slot.

    Those that wait for a slot are set aside, a fixed number at most. After MAX_OVERTAKEN starts
    of others nobody starts before the first of them: the sequences that run end, so a slot becomes
    free.

    Args:
        inner: has the order.
        can_start: whether a sequence's adapter would find a slot.
    """

    MAX_ASIDE = 64
    MAX_OVERTAKEN = 32

    def __init__(self, inner: Fcfs, can_start: Callable[[Sequence], bool]) -> None:
        self._inner, self._can_start = inner, can_start
        self._aside: list[tuple[Key, Sequence]] = []  # sorted; they come before all in `inner`
        self._overtaken = 0  # starts in a row before the first one aside
        self._chosen: int | None = None  # of those aside

    def __len__(self) -> int:
        return len(self._inner) + len(self._aside)

    def key(self, sequence: Sequence) -> Key:
        return self._inner.key(sequence)

    def push(self, sequence: Sequence) -> None:
        if self._aside and self.key(sequence) < self._aside[-1][0]:
            insort(self._aside, (self.key(sequence), sequence))
        else:
            self._inner.push(sequence)

    def peek(self) -> Sequence | None:
        self._chosen = None
        for at, (_, waiting) in enumerate(self._aside):
            if at and self._overtaken >= self.MAX_OVERTAKEN:
                return None
            if self._can_start(waiting):
                self._chosen = at
                return waiting
        if self._aside and self._overtaken >= self.MAX_OVERTAKEN:
            return None
        while (sequence := self._inner.peek()) is not None:
            if self._can_start(sequence):
                return sequence
            if len(self._aside) >= self.MAX_ASIDE:
                return None
            insort(self._aside, (self.key(sequence), self._inner.pop()))
        return None

    def pop(self) -> Sequence:
        if self._chosen is None:
            self._overtaken += bool(self._aside)
            return self._inner.pop()
        self._overtaken = self._overtaken + 1 if self._chosen else 0
        return self._aside.pop(self._chosen)[1]

    def head(self, count: int) -> list[Sequence]:
        first = [sequence for _, sequence in self._aside[:count]]
        return first + self._inner.head(count - len(first))

    def discard(self, sequence: Sequence) -> None:
        entry = (self.key(sequence), sequence)
        if entry in self._aside:
            self._overtaken = 0 if entry == self._aside[0] else self._overtaken
            self._aside.remove(entry)
        else:
            self._inner.discard(sequence)
