"""Recorder: what has changed in pool, block tables and queue, for somebody who watches them.

It exists only while somebody watches. A snapshot looks at the blocks that have changed, at the
running sequences and at the head of the queue, never at the whole pool; the first few after the
start also report the pool as it was, a part each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler.blocks.pool import NULL_BLOCK, BlockPool
from scheduler.plan import StepPlan
from scheduler.plan_builder import PendingPlan
from scheduler.policies import Fcfs
from scheduler.request import Sequence
from scheduler.running import RunningSequences

CACHED = -1  # state of a free block that the prefix cache finds
MOST_BLOCKS = 4096  # whose state a snapshot reports; the others wait for the next
MOST_WAITING = 32  # of whose sequences it tells


@dataclass(frozen=True, slots=True)
class StartedSequence:
    """A sequence has blocks now.

    Args:
        key: names it in what follows; no other sequence ever gets it. One that was preempted has
            a new key when it starts again.
        index: which sample of its request it is.
        cached_tokens: of the prompt, that the prefix cache had.
    """

    key: int
    request_id: str
    index: int
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class EndedSequence:
    """A sequence has no blocks any more. Args: preempted: it waits to start again."""

    key: int
    preempted: bool


@dataclass(frozen=True, slots=True)
class ChangedTable:
    """A block table from an entry on; it ends with the last of these.

    Args:
        group: cache group.
        first: index of the first entry that has changed.
        block_ids: from there on.
        num_released: leading entries whose blocks the window has left behind.
    """

    key: int
    group: int
    first: int
    block_ids: list[int]
    num_released: int


class Progress(NamedTuple):  # which is made for every sequence of every snapshot: it is cheap
    """Tokens of a running sequence. Args: computed: planned so far; known: prompt and output."""

    key: int
    computed: int
    known: int


@dataclass(frozen=True, slots=True)
class WaitingSequence:
    """A sequence in the queue, with its known tokens."""

    request_id: str
    index: int
    tokens: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class Changes:
    """What has changed since the last snapshot.

    Args:
        first: it is the first since the watch began: all before is void.
        blocks: (block, state): the number of tables that hold it, 0 for a free one, CACHED for a
            free one that the prefix cache finds.
        waiting: the head of the queue; None if it hasn't changed.
    """

    first: bool
    blocks: list[tuple[int, int]]
    started: list[StartedSequence]
    ended: list[EndedSequence]
    tables: list[ChangedTable]
    progress: list[Progress]
    waiting: list[WaitingSequence] | None


@dataclass(slots=True)
class _Reported:
    """What has been told of a sequence.

    Args:
        lengths, tails, released: of its tables; tails are their last entries.
    """

    key: int
    announced: bool = False
    preemptions: int = 0
    tables: tuple[list[int], ...] = ()
    lengths: list[int] = field(default_factory=list)
    tails: list[list[int]] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    progress: Progress | None = None


class Recorder:
    """Made by Scheduler.watch(). `close()` ends the watch.

    Args:
        pending: plans in flight, the newest last.
        next_step: the number of the next plan.
        tail: entries at the end of a table that may be replaced.
    """

    def __init__(
        self,
        pool: BlockPool,
        running: RunningSequences,
        waiting: Fcfs,
        pending: deque[PendingPlan],
        next_step: Callable[[], int],
        tail: int,
    ) -> None:
        self._pool, self._running, self._waiting = pool, running, waiting
        self._pending, self._next_step = pending, next_step
        self._tail = tail
        self._reported: dict[Sequence, _Reported] = {}
        self._next_key = 0
        self._queue: list[WaitingSequence] = []
        self._is_first = True
        pool.changed = set(range(1, pool.num_blocks))

    def close(self) -> None:
        self._pool.changed = None

    @property
    def has_more(self) -> bool:
        """Whether the last snapshot had no room for all blocks."""
        return bool(self._pool.changed)

    def prompts(self, plan: StepPlan) -> list[tuple[int, int]]:
        """(key, tokens) of each chunk of the plan made last."""
        if not self._pending or self._pending[-1].plan is not plan:
            return []
        sequences = self._pending[-1].chunked
        return [
            (self._of(sequence).key, len(chunk.token_ids))
            for sequence, chunk in zip(sequences, plan.chunks, strict=True)
        ]

    def take(self) -> Changes:
        """The changes since the last call."""
        step = self._next_step()
        running = [*self._running.with_slots(), *self._running.forked]
        started, ended = self._starts_and_ends(running)
        tables: list[ChangedTable] = []
        progress = []
        for sequence in running:
            reported = self._reported[sequence]
            tables += _changed_tables(sequence, reported, self._tail)
            now = Progress(reported.key, sequence.position(step), sequence.num_tokens)
            if now != reported.progress:
                reported.progress = now
                progress.append(now)
        is_first, self._is_first = self._is_first, False
        queue = self._queue_head()
        waiting, self._queue = None if queue == self._queue else queue, queue
        return Changes(is_first, self._changed_blocks(), started, ended, tables, progress, waiting)

    def _of(self, sequence: Sequence) -> _Reported:
        reported = self._reported.get(sequence)
        if reported is None:
            reported = self._reported[sequence] = _Reported(
                self._next_key, preemptions=sequence.num_preemptions
            )
            self._next_key += 1
        return reported

    def _starts_and_ends(
        self, running: list[Sequence]
    ) -> tuple[list[StartedSequence], list[EndedSequence]]:
        """Of the sequences that run now, and of those that did."""
        started, ended = [], []
        known = self._reported
        for sequence in running:
            reported = known.get(sequence)
            # One that was preempted has started again.
            if reported and reported.preemptions != sequence.num_preemptions:
                if reported.announced:
                    ended.append(EndedSequence(reported.key, True))
                del known[sequence]
                reported = None
            if not (reported := reported or self._of(sequence)).announced:
                started.append(_start(sequence, reported))
        if len(known) > len(running):
            for sequence in known.keys() - set(running):
                reported = known.pop(sequence)
                if not reported.announced:
                    started.append(_start(sequence, reported))
                preempted = sequence.num_preemptions > reported.preemptions
                ended.append(EndedSequence(reported.key, preempted))
        return started, ended

    def _changed_blocks(self) -> list[tuple[int, int]]:
        pool, changed = self._pool, self._pool.changed
        assert changed is not None
        if len(changed) > MOST_BLOCKS:
            some = [changed.pop() for _ in range(MOST_BLOCKS)]
        else:
            some = list(changed)
            changed.clear()
        some.sort()
        references, is_cached = pool.references, pool.is_cached
        return [(b, references(b) or (CACHED if is_cached(b) else 0)) for b in some]

    def _queue_head(self) -> list[WaitingSequence]:
        return [
            WaitingSequence(s.request.request_id, s.index, s.num_tokens, s.num_preemptions)
            for s in self._waiting.head(MOST_WAITING)
        ]


def _start(sequence: Sequence, reported: _Reported) -> StartedSequence:
    reported.announced = True
    return StartedSequence(
        reported.key,
        sequence.request.request_id,
        sequence.index,
        sequence.num_prompt,
        sequence.num_cached_tokens,
    )


def _changed_tables(sequence: Sequence, reported: _Reported, tail: int) -> list[ChangedTable]:
    """Only the last `tail` entries of a table can be replaced (copy-on-write), and only leading
    ones can be released; the rest grows at the end."""
    if reported.tables is not sequence.tables:
        count = len(sequence.tables)
        reported.tables, reported.lengths = sequence.tables, [0] * count
        reported.tails, reported.released = [[]] * count, [0] * count
    changed = []
    for group, table in enumerate(sequence.tables):
        length = first = reported.lengths[group]
        known = reported.tails[group]
        if table[length - len(known) : length] != known:
            first = length - len(known)
        before = released = reported.released[group]
        while released < len(table) and table[released] == NULL_BLOCK:
            released += 1
        if first < len(table) or released != before:
            changed.append(ChangedTable(reported.key, group, first, table[first:], released))
        reported.lengths[group], reported.released[group] = len(table), released
        reported.tails[group] = table[-tail:]
    return changed
