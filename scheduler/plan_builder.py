"""A step's plan while it is put together, and a plan whose results aren't known yet."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from itertools import compress

from scheduler.blocks.pool import NULL_BLOCK
from scheduler.blocks.tables import Growth
from scheduler.decode_rows import RowBatch
from scheduler.plan import Chunk, Draft, SlotStart, StepPlan
from scheduler.request import Sequence


@dataclass(slots=True)
class PlanBuilder:
    """Collects what a step does besides its decode rows.

    Entries are kept by sequence, so that everything planned for a sequence can be removed when it
    is preempted later in the same schedule() call.

    Args:
        new_blocks: of decode rows that begin a block, as StepPlan.new_blocks.
        growth: blocks that other tables got.
        num_tokens: tokens planned so far, decode rows included.
    """

    new_blocks: list[tuple[int, int, int, int]] = field(default_factory=list)
    growth: dict[Sequence, list[Growth]] = field(default_factory=dict)
    drafts: list[tuple[Sequence, tuple[int, ...]]] = field(default_factory=list)
    starts: dict[Sequence, SlotStart] = field(default_factory=dict)
    chunks: list[tuple[Sequence, Chunk]] = field(default_factory=list)
    num_tokens: int = 0

    def start(self, sequence: Sequence) -> None:
        """Plans that a sequence takes the slot that it was just given."""
        tables = tuple(tuple(table) for table in sequence.tables)
        self.starts[sequence] = SlotStart(
            sequence.slot, sequence, tables, sequence.num_computed, sequence.adapter_slot
        )

    def build(self, step: int, rows: RowBatch) -> StepPlan | None:
        """The plan; None if the step would compute nothing."""
        if not (rows.slots or self.chunks or self.drafts):
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
        for sequence in self.starts:  # whose whole tables the plan holds anyway
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
        )


@dataclass(slots=True)
class PendingPlan:
    """A plan whose results aren't known yet, and the sequences of its rows.

    Args:
        rows: the first decode rows.
        drafted: the sequences of the decode rows after those.
        chunked: the sequences of the chunks.
        num_ended: sequences that had ended when it was planned. While the registry's count is the
            same, no row's sequence has ended since, and none needs to be looked at.
    """

    plan: StepPlan
    rows: RowBatch
    drafted: list[Sequence]
    chunked: list[Sequence]
    num_ended: int

    def sampled_rows(
        self, sampled: SequenceOf[int], any_ended: bool
    ) -> tuple[list[Sequence], list[list[int]], list[int]]:
        """The rows without drafts that get a token: sequences, their output_token_ids, tokens.

        Args:
            sampled: as for Scheduler.update().
            any_ended: leave out the rows of sequences that have ended.
        """
        sequences, outputs = self.rows.sequences, self.rows.outputs
        tokens = list(sampled)
        if self.drafted or self.chunked:
            samples = [chunk.samples for chunk in self.plan.chunks]
            started = list(compress(self.chunked, samples))
            sequences = sequences + started
            outputs = outputs + [sequence.output_token_ids for sequence in started]
            from_chunks = compress(tokens[len(self.plan.decode_slots) :], samples)
            tokens = [*tokens[: len(self.rows.slots)], *from_chunks]
        if any_ended:
            alive = [sequence.finish_reason is None for sequence in sequences]
            sequences = list(compress(sequences, alive))
            outputs = list(compress(outputs, alive))
            tokens = list(compress(tokens, alive))
        return sequences, outputs, tokens

    def drafted_rows(
        self, sampled: SequenceOf[int], drafted: SequenceOf[SequenceOf[int]]
    ) -> list[tuple[Sequence, SequenceOf[int]]]:
        """The other decode rows, each with the tokens that it gets. Args as Scheduler.update()."""
        first = len(self.rows.slots)
        tokens: dict[int, SequenceOf[int]] = {
            draft.row: accepted for draft, accepted in zip(self.plan.drafts, drafted, strict=True)
        }
        return [
            (sequence, tokens.get(row, [sampled[row]]))
            for row, sequence in enumerate(self.drafted, first)
        ]
