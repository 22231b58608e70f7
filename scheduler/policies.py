"""The queue of waiting sequences: which one is admitted next, and which one is preempted first.

Under fcfs and priority nothing overtakes the head of the queue: while a long request at the head
waits for blocks, shorter ones wait behind it. Its wait is bounded, since nothing newer takes the
blocks that running sequences release, and so is that of the others, since each sequence has a
token limit. Under longest-prefix a request is overtaken a fixed number of times at most.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable
from typing import Any

from scheduler.request import Sequence, Status

Key = tuple[Any, ...]


class Fcfs:
    """In order of arrival. The newest is preempted first."""

    def __init__(self) -> None:
        self._heap: list[tuple[Key, Sequence]] = []
        self._stale = 0  # entries whose sequence has ended

    def __len__(self) -> int:
        return len(self._heap) - self._stale

    def key(self, sequence: Sequence) -> Key:
        """Sorts the most urgent first; unique. The last in this order is preempted first."""
        return (sequence.order, sequence.index)

    def push(self, sequence: Sequence) -> None:
        """Queues a sequence. By its key, a preempted one comes before all that never ran."""
        heapq.heappush(self._heap, (self.key(sequence), sequence))

    def peek(self) -> Sequence | None:
        """The one to admit next."""
        while self._heap:
            sequence = self._heap[0][1]
            if sequence.status is Status.WAITING:
                return sequence
            heapq.heappop(self._heap)
            self._stale -= 1
        return None

    def pop(self) -> Sequence:
        """Removes the one that peek() just returned."""
        return heapq.heappop(self._heap)[1]

    def head(self, count: int) -> list[Sequence]:
        """The first in the order of their keys, without a pass over the others."""
        heap, found = self._heap, []  # type: list[tuple[Key, Sequence]], list[Sequence]
        border = [(entry[0], at) for at, entry in enumerate(heap[:1])]
        while border and len(found) < count:
            _, at = heapq.heappop(border)
            if (sequence := heap[at][1]).status is Status.WAITING:
                found.append(sequence)
            for child in range(2 * at + 1, min(2 * at + 3, len(heap))):
                heapq.heappush(border, (heap[child][0], child))
        return found

    def discard(self, sequence: Sequence) -> None:
        """Notes that a queued sequence has ended. Its entry is removed when it comes to the head,
        or with all other such entries once they are more than half."""
        self._stale += 1
        if self._stale > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[1].status is Status.WAITING]
            heapq.heapify(self._heap)
            self._stale = 0


class Priority(Fcfs):
    """Lowest number first, then the earliest. Preempts the highest number, then the newest."""

    def key(self, sequence: Sequence) -> Key:
        request = sequence.request
        return (request.priority, request.arrival_time, sequence.order, sequence.index)


class LongestPrefix(Fcfs):
    """Of the oldest NUM_CANDIDATES, the one with most cached tokens.

    Only a fixed number is compared, so that an admission costs the same however long the queue is.
    After MAX_OVERTAKEN admissions of others in a row the oldest is next, whatever is cached.
    """

    NUM_CANDIDATES = 16
    MAX_OVERTAKEN = 32

    def __init__(self, count_hits: Callable[[Sequence], int]) -> None:
        super().__init__()
        self._count_hits = count_hits
        self._oldest: list[tuple[Key, Sequence]] = []  # sorted; the others are in the heap
        self._overtaken = 0  # admissions in a row before the oldest
        self._chosen = 0

    def __len__(self) -> int:
        return super().__len__() + len(self._oldest)

    def push(self, sequence: Sequence) -> None:
        insort(self._oldest, (self.key(sequence), sequence))
        if len(self._oldest) > self.NUM_CANDIDATES or (
            self._heap and self._heap[0][0] < self._oldest[-1][0]
        ):
            heapq.heappush(self._heap, self._oldest.pop())

    def head(self, count: int) -> list[Sequence]:
        oldest = [sequence for _, sequence in self._oldest[:count]]
        return oldest + super().head(count - len(oldest))

    def peek(self) -> Sequence | None:
        while len(self._oldest) < self.NUM_CANDIDATES and (oldest := super().peek()) is not None:
            self._oldest.append((self.key(oldest), super().pop()))
        if not self._oldest:
            return None
        self._chosen = 0
        if self._overtaken < self.MAX_OVERTAKEN:
            hits = [self._count_hits(sequence) for _, sequence in self._oldest]
            self._chosen = hits.index(max(hits))
        return self._oldest[self._chosen][1]

    def pop(self) -> Sequence:
        self._overtaken = self._overtaken + 1 if self._chosen else 0
        return self._oldest.pop(self._chosen)[1]

    def discard(self, sequence: Sequence) -> None:
        entry = (self.key(sequence), sequence)
        if entry in self._oldest:
            self._overtaken = 0 if entry == self._oldest[0] else self._overtaken
            self._oldest.remove(entry)
        else:
            super().discard(sequence)


def make_policy(name: str, count_hits: Callable[[Sequence], int]) -> Fcfs:
    """Raises ValueError for a name that isn't known."""
    if name == "fcfs":
        return Fcfs()
    if name == "priority":
        return Priority()
    if name == "longest-prefix":
        return LongestPrefix(count_hits)
    raise ValueError(f"policy must be fcfs, priority or longest-prefix; it was {name!r}")
