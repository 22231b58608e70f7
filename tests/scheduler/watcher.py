"""Puts the changes that a Recorder reports together, as a reader does, and compares with the
scheduler itself."""

from __future__ import annotations

from scheduler import Changes, Scheduler, Sequence
from scheduler.request import Status


class Watcher:
    """What a reader knows."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.recorder = scheduler, scheduler.watch()
        self.blocks: dict[int, int] = {}
        self.names: dict[int, tuple[str, int]] = {}
        self.tables: dict[tuple[int, int], list[int]] = {}
        self.progress: dict[int, tuple[int, int]] = {}
        self.waiting: list[tuple[str, int]] = []
        self.preempted = 0
        self.seen = 0  # snapshots

    def look(self) -> Changes:
        """Takes a snapshot in."""
        changes = self.recorder.take()
        assert changes.first == (self.seen == 0)
        self.seen += 1
        self.blocks.update(changes.blocks)
        for start in changes.started:
            assert start.key not in self.names
            self.names[start.key] = (start.request_id, start.index)
        for end in changes.ended:
            del self.names[end.key]
            self.preempted += end.preempted
            self.progress.pop(end.key, None)
            self.tables = {k: table for k, table in self.tables.items() if k[0] != end.key}
        for change in changes.tables:
            table = self.tables.setdefault((change.key, change.group), [])
            assert change.first <= len(table), "entries are missing"
            table[change.first :] = change.block_ids
            table[: change.num_released] = [0] * change.num_released
        self.progress.update({p.key: (p.computed, p.known) for p in changes.progress})
        if changes.waiting is not None:
            self.waiting = [(w.request_id, w.index) for w in changes.waiting]
        return changes

    def check(self, sequences: list[Sequence]) -> None:
        """Args: sequences: all that there ever were."""
        pool = self.scheduler.tables.pool
        assert self.blocks == {
            block: pool.references(block) or (-1 if pool.is_cached(block) else 0)
            for block in range(1, pool.num_blocks)
        }
        holders = {(s.request.request_id, s.index): s for s in sequences if s.tables}
        assert sorted(self.names.values()) == sorted(holders)
        for key, name in self.names.items():
            sequence = holders[name]
            tables = tuple(self.tables.get((key, i), []) for i in range(len(sequence.tables)))
            assert tables == sequence.tables
            assert self.progress[key][1] == sequence.num_tokens
        queued = {(s.request.request_id, s.index) for s in sequences if s.status is Status.WAITING}
        assert set(self.waiting) <= queued
        assert len(self.waiting) == min(32, len(queued))
