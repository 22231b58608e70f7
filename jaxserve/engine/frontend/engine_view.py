"""EngineView: the state of pool, block tables and queue, put together from snapshots."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxserve.engine.core.protocol import Snapshot, StepRecord
from scheduler import Changes, StartedSequence, WaitingSequence

__all__ = ["UNKNOWN", "EngineView", "SequenceView", "Snapshot", "StepRecord", "name_of"]

UNKNOWN = -2


@dataclass(slots=True)
class SequenceView:
    """A running sequence.

    Args:
        computed: tokens planned so far.
        known: prompt and output tokens.
        tables: block ids a cache group; 0 where the window has left the block behind.
    """

    start: StartedSequence
    computed: int = 0
    known: int = 0
    tables: dict[int, list[int]] = field(default_factory=dict)


class EngineView:
    """What is known of the engine since its first snapshot.

    is_known: the first snapshot is there.
    blocks: the state of each block, by its number: how many tables hold it, 0 for a free one, -1
        for a free one that the prefix cache finds, UNKNOWN for the null block and while no snapshot
        has told it: of a large pool each of the first ones tells a part.
    sequences: those that run, by their keys.
    waiting: the head of the queue.

    Args:
        num_blocks: the null block included.
    """

    def __init__(self, num_blocks: int) -> None:
        self.is_known = False
        self.blocks = [UNKNOWN] * num_blocks
        self.sequences: dict[int, SequenceView] = {}
        self.waiting: list[WaitingSequence] = []

    def take(self, changes: Changes) -> None:
        """Takes in what a snapshot says."""
        self.is_known = True
        if changes.first:
            self.sequences.clear()
            self.waiting = []
        for block, state in changes.blocks:
            self.blocks[block] = state
        for start in changes.started:
            self.sequences[start.key] = SequenceView(start)
        for end in changes.ended:
            del self.sequences[end.key]
        for change in changes.tables:
            table = self.sequences[change.key].tables.setdefault(change.group, [])
            table[change.first :] = change.block_ids
            table[: change.num_released] = [0] * change.num_released
        for progress in changes.progress:
            sequence = self.sequences[progress.key]
            sequence.computed, sequence.known = progress.computed, progress.known
        if changes.waiting is not None:
            self.waiting = changes.waiting


def name_of(request_id: str) -> str:
    """The caller's name for a request, out of the engine's id."""
    return request_id.partition("-")[2]
