"""A step's plan while it is put together, and while it is in flight."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.blocks import NULL_BLOCK
from scheduler.decodes import Rows
from scheduler.plan import Chunk, Draft, SlotStart, StepPlan
from scheduler.request import Sequence
from scheduler.tables import Growth


@dataclass(slots=True)
class PlanParts:
    """What a step does besides the bulk decode rows; a victim can still be taken out whole."""

    new_blocks: list[tuple[int, int, int, int]] = field(default_factory=list)
    growth: dict[Sequence, list[Growth]] = field(default_factory=dict)
    swap_outs: list[tuple[int, int]] = field(default_factory=list)
    swap_ins: list[tuple[int, int]] = field(default_factory=list)
    drafts: list[tuple[Sequence, tuple[int, ...]]] = field(default_factory=list)
    starts: dict[Sequence, SlotStart] = field(default_factory=dict)
    chunks: list[tuple[Sequence, Chunk]] = field(default_factory=list)
    num_tokens: int = 0

    def start(self, sequence: Sequence) -> None:
        tables = tuple(tuple(table) for table in sequence.tables)
        self.starts[sequence] = SlotStart(sequence.slot, sequence, tables, sequence.num_computed)

    def build(self, step: int, rows: Rows) -> StepPlan | None:
        """The plan; None if it would do nothing."""
        if not (rows.slots or self.chunks or self.drafts or self.swap_outs):
            return None
        first, slots = len(rows.slots), rows.slots
        if self.drafts:
            slots += tuple([sequence.slot for sequence, _ in self.drafts])
        copies = [
            (source, block)
            for entries in self.growth.values()
            for _, _, block, source in entries
            if source != NULL_BLOCK
        ]
        for sequence in self.starts:
            self.growth.pop(sequence, None)
        self.new_blocks += [
            (sequence.slot, group, index, block)
            for sequence, entries in self.growth.items()
            for group, index, block, _ in entries
        ]
        return StepPlan(
            step,
            slots,
            tuple([chunk for _, chunk in self.chunks]),
            tuple(self.starts.values()),
            tuple(self.new_blocks),
            tuple(copies),
            self.num_tokens,
            tuple([Draft(row, ids) for row, (_, ids) in enumerate(self.drafts, first) if ids]),
            tuple(self.swap_outs),
            tuple(self.swap_ins),
        )


@dataclass(slots=True)
class Flight:
    """A plan whose results aren't known yet, and whose rows they are."""

    plan: StepPlan
    rows: Rows
    drafted: list[Sequence]  # decode rows after those of `rows`
    chunks: list[Sequence]
    num_ended: int  # of all sequences so far: tells whether a row's sequence may have ended since
