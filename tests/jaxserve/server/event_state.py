"""What a reader of /v1/engine/events knows: puts events together as docs/api.md says."""

from __future__ import annotations

from typing import Any


class EventState:
    def __init__(self) -> None:
        self.about: dict[str, Any] = {}
        self.blocks: dict[int, int] = {}
        self.sequences: dict[int, list[Any]] = {}
        self.tables: dict[tuple[int, int], list[int]] = {}
        self.tokens: dict[int, tuple[int, int]] = {}
        self.waiting: list[list[Any]] = []
        self.steps: list[list[Any]] = []
        self.stats: dict[str, int] = {}
        self.preempted: list[str] = []
        self.copies: list[list[int]] = []

    def take(self, event: dict[str, Any]) -> None:
        if event.get("first"):
            self.__init__()  # type: ignore[misc]
            self.about = event
        for key, preempted in event.get("ended", ()):
            if preempted:
                self.preempted.append(self.sequences[key][0])
            del self.sequences[key]
            self.tokens.pop(key, None)
            self.tables = {at: table for at, table in self.tables.items() if at[0] != key}
        for key, *start in event.get("started", ()):
            assert key not in self.sequences
            self.sequences[key] = start
        for key, group, released, first, *entries in event.get("tables", ()):
            assert key in self.sequences
            table = self.tables.setdefault((key, group), [])
            assert first <= max(len(table), released)
            table += [0] * (first - len(table))
            del table[first:]
            for number in entries:
                table += [number] if number > 0 else range(table[-1] + 1, table[-1] + 1 - number)
            table[:released] = [0] * released
        for state, *gaps in event.get("blocks", ()):
            block = 0
            for gap in gaps:
                for _ in range(1 if gap > 0 else -gap):
                    block += max(gap, 1)
                    self.blocks[block] = state
        numbers = event.get("tokens", [])
        for key, computed, known in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
            self.tokens[key] = (computed, known)
        self.waiting = event.get("waiting", self.waiting)
        self.steps += event.get("steps", ())
        self.copies += event.get("copies", ())
        self.stats = event.get("stats", self.stats)

    @property
    def names(self) -> list[tuple[str, int]]:
        return sorted((start[0], start[1]) for start in self.sequences.values())
