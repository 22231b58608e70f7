"""Who waits first, and who is preempted first: both follow from one sort key.

The head of the queue is never passed over: a long request at the head waits for blocks while
shorter ones wait behind it. Its wait is bounded, since nothing newer takes the blocks that running
sequences give back, and so is that of the others, since each sequence has a token limit.
"""

from __future__ import annotations

import heapq
from typing import Any

from scheduler.request import Sequence, Status

Key = tuple[Any, ...]


class Fcfs:
    """In order of arrival. The newest is preempted first."""

    def __init__(self) -> None:
        self._heap: list[tuple[Key, Sequence]] = []
        self._stale = 0

    def __len__(self) -> int:
        return len(self._heap) - self._stale

    def key(self, sequence: Sequence) -> Key:
        """Sorts the most urgent first; unique."""
        return (sequence.order, sequence.index)

    def push(self, sequence: Sequence) -> None:
        """Queues a sequence: by its key a preempted one comes before all that never ran."""
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
        """Takes out the one that peek() named."""
        return heapq.heappop(self._heap)[1]

    def discard(self) -> None:
        """Notes that one queued sequence has ended; it goes when it surfaces, or in bulk."""
        self._stale += 1
        if self._stale > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[1].status is Status.WAITING]
            heapq.heapify(self._heap)
            self._stale = 0


class Priority(Fcfs):
    """Lowest number first, then earliest. Preempts the highest number, then the newest."""

    def key(self, sequence: Sequence) -> Key:
        request = sequence.request
        return (request.priority, request.arrival_time, sequence.order, sequence.index)


def make_policy(name: str) -> Fcfs:
    policies = {"fcfs": Fcfs, "priority": Priority}
    if name not in policies:
        raise ValueError(f"policy must be one of {', '.join(policies)}; it was {name!r}")
    return policies[name]()
