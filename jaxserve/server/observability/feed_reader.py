"""FeedReader: what one reader of /v1/engine/events has yet to be told, and in which form.

The reader has the state as of its last event; what has changed since is kept as sets of numbers, so
that a block that changes twice is told once, and a slow reader gets larger steps, not a backlog. An
event has room for so many numbers, and what doesn't fit waits for the next one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from jaxserve.engine.frontend.engine_view import (
    UNKNOWN,
    EngineView,
    SequenceView,
    Snapshot,
    StepRecord,
    name_of,
)

# Most numbers of an event for block states, and for table entries; see EngineEvent.
MOST_STATES = 600
MOST_ENTRIES = 600
MOST_PROGRESS = 64  # sequences whose tokens are told
MOST_STEPS = 25
MOST_COPIES = 16
MOST_PROMPTS = 8  # of a step that are told one by one
MOST_NAMES = 24  # of sequences that start or wait
NAME_LENGTH = 64


class FeedReader:
    """Args: view: kept up to date by others."""

    def __init__(self, view: EngineView) -> None:
        self._steps: deque[StepRecord] = deque(maxlen=200)
        self.restart(view)

    def restart(self, view: EngineView) -> None:
        """All is to be told anew."""
        self._view = view
        self.is_first = True  # the next event
        self._blocks = {block for block, state in enumerate(view.blocks) if state != UNKNOWN}
        self._next_block = 1
        self._told: dict[int, list[int]] = {}  # started sequences, and how much of each table
        # Sequences whose tables have changed, the one that waits longest first.
        self._changed = dict.fromkeys(view.sequences)
        self._started = dict.fromkeys(view.sequences)  # to be told, in this order
        self._ended: list[tuple[int, bool]] = []
        self._progress = set(view.sequences)
        self._waiting = True
        self._steps.clear()

    @property
    def has_news(self) -> bool:
        return bool(
            self.is_first
            or self._blocks
            or self._changed
            or self._started
            or self._ended
            or self._progress
            or self._waiting
            or self._steps
        )

    def note(self, snapshot: Snapshot) -> None:
        """Notes what the snapshot changes; the view has taken it in already."""
        changes = snapshot.changes
        if changes.first:
            self.restart(self._view)
        self._blocks.update(block for block, _ in changes.blocks)
        for start in changes.started:
            self._started[start.key] = None
        for end in changes.ended:
            if end.key in self._told:
                self._ended.append((end.key, end.preempted))
            self._progress.discard(end.key)
            self._changed.pop(end.key, None)
            self._started.pop(end.key, None)
            self._told.pop(end.key, None)
        for change in changes.tables:
            if change.key not in self._view.sequences:
                continue
            self._changed.setdefault(change.key)
            if (told := self._told.get(change.key)) is not None:
                while len(told) <= change.group:
                    told.append(0)
                told[change.group] = min(told[change.group], change.first)
        self._progress.update(p.key for p in changes.progress if p.key in self._view.sequences)
        self._waiting = self._waiting or changes.waiting is not None
        self._steps.extend(snapshot.steps)

    def event(self) -> dict[str, Any]:
        """What is new, as far as there is room: only the fields that have something to say."""
        event: dict[str, Any] = {}
        self.is_first = False
        if self._ended:
            event["ended"], self._ended = self._ended, []
        if self._started:
            event["started"] = list(self._take_started())
        if self._changed and (tables := self._take_tables()):
            event["tables"] = tables
        if self._blocks:
            event["blocks"] = self._take_blocks()
        if self._progress:
            event["tokens"] = self._take_progress()
        if self._waiting:
            self._waiting = False
            head = self._view.waiting[:MOST_NAMES]
            event["waiting"] = [
                [name_of(w.request_id)[:NAME_LENGTH], w.index, w.tokens, w.preemptions]
                for w in head
            ]
        if self._steps:
            event["skipped_steps"] = max(0, len(self._steps) - MOST_STEPS)
            event["steps"] = [_step(record) for record in list(self._steps)[-MOST_STEPS:]]
            if copies := [pair for record in self._steps for pair in record.copies]:
                event["copies"] = copies[-MOST_COPIES:]
            self._steps.clear()
        return event

    def _take_started(self) -> Iterator[list[Any]]:
        for key in list(self._started)[:MOST_NAMES]:
            del self._started[key]
            self._told[key] = []
            start = self._view.sequences[key].start
            name = name_of(start.request_id)[:NAME_LENGTH]
            yield [key, name, start.index, start.prompt_tokens, start.cached_tokens]

    def _take_tables(self) -> list[list[int]]:
        """As EngineEvent.tables."""
        tables: list[list[int]] = []
        room = MOST_ENTRIES
        for key in [key for key in self._changed if key in self._told]:
            if room <= 0:
                break
            del self._changed[key]
            sequence, told = self._view.sequences[key], self._told[key]
            for group, table in sorted(sequence.tables.items()):
                while len(told) <= group:
                    told.append(0)
                released = _released(sequence, group)
                first = max(told[group], released)
                entries, count = _entries(table, first, max(4, room))
                tables.append([key, group, released, first, *entries])
                room -= len(entries) + 4
                told[group] = first + count
                if told[group] < len(table):
                    self._changed[key] = None
        return tables

    def _take_blocks(self) -> list[list[int]]:
        """As EngineEvent.blocks, from where the last event ended."""
        by_state: dict[int, list[int]] = {}
        last: dict[int, int] = {}
        room = MOST_STATES
        for block in self._blocks_in_order():
            state = self._view.blocks[block]
            numbers = by_state.setdefault(state, [state])
            gap = block - last.get(state, 0)
            if gap == 1 and len(numbers) > 1 and numbers[-1] < 0:
                numbers[-1] -= 1
            elif room <= 0:
                break
            else:
                numbers.append(-1 if gap == 1 and len(numbers) > 1 else gap)
                room -= 1
            last[state] = block
            self._blocks.discard(block)
            self._next_block = block + 1
        else:
            self._next_block = 1
        return [numbers for numbers in by_state.values() if len(numbers) > 1]

    def _blocks_in_order(self) -> Iterator[int]:
        """Those to be told, in order, from the next one to the end of the pool; from the beginning
        if none is left there."""
        blocks, size = self._blocks, len(self._view.blocks)
        if len(blocks) * 8 > size:  # a pass over the pool costs less than to sort so many
            ahead = [block for block in range(self._next_block, size) if block in blocks]
            return iter(ahead or [block for block in range(1, size) if block in blocks])
        some = sorted(blocks)
        return iter(some[bisect_left(some, self._next_block) :] or some)

    def _take_progress(self) -> list[int]:
        """Key, computed and known tokens of each sequence."""
        numbers: list[int] = []
        for key in list(self._progress & self._told.keys())[:MOST_PROGRESS]:
            self._progress.discard(key)
            sequence = self._view.sequences[key]
            numbers += [key, sequence.computed, sequence.known]
        return numbers


def _released(sequence: SequenceView, group: int) -> int:
    """Leading entries of a table whose blocks the window has left behind."""
    released = 0
    for block in sequence.tables[group]:
        if block:
            break
        released += 1
    return released


def _entries(table: list[int], first: int, room: int) -> tuple[list[int], int]:
    """A table from an entry on, in so many numbers at most, -n for n consecutive blocks after the
    one before; and how many entries that is."""
    numbers: list[int] = []
    count, last = 0, -1
    for block in table[first:]:
        if block != last + 1 or not numbers:
            if len(numbers) >= room:
                break
            numbers.append(block)
        elif numbers[-1] < 0:
            numbers[-1] -= 1
        else:
            numbers.append(-1)
        last = block
        count += 1
    return numbers, count


def _step(record: StepRecord) -> list[Any]:
    """[step, decodes, padded tokens, device ms, host ms, prompts]; the prompts are key and
    tokens of each, and those beyond a few are added up under the key -1."""
    prompts = record.prompts
    if len(prompts) > MOST_PROMPTS:
        rest = sum(tokens for _, tokens in prompts[MOST_PROMPTS:])
        prompts = [*prompts[:MOST_PROMPTS], (-1, rest)]
    return [
        record.step,
        record.decodes,
        record.padded,
        round(record.device_s * 1000, 2),
        round(record.host_s * 1000, 2),
        _flat(prompts),
    ]


def _flat(pairs: Iterable[tuple[int, int]]) -> list[int]:
    return [number for pair in pairs for number in pair]
