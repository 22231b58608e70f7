"""RunningSequences: the sequences that hold blocks, by what the next step does with them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence as SequenceOf

from scheduler.adapters import AdapterSlots
from scheduler.config import SchedulerConfig
from scheduler.decode_rows import DecodeRows
from scheduler.request import Sequence, Status


class RunningSequences:
    """The slots, and the sequences in them. Their blocks are the scheduler's to give and take.

    The collections:
        forked: forks that have no slot yet.
        prefills: known tokens are left to compute; in the order in which they got their slots.
        decodes: one token in every step.
        drafts: the next step verifies these guesses; an empty tuple is a plain decode.
        awaited: a step in flight decides how they go on, so they aren't planned before its results.

    adapters: the adapter slots, which sequences with a slot hold.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._max_draft_tokens = config.max_draft_tokens
        self._num_slots = config.max_num_seqs
        self._free_slots = list(range(config.max_num_seqs))  # a heap
        self.forked: dict[Sequence, None] = {}
        self.prefills: dict[Sequence, None] = {}
        self.decodes = DecodeRows(config.block_size)
        self.drafts: dict[Sequence, tuple[int, ...]] = {}
        self.awaited: dict[Sequence, None] = {}
        self.adapters = AdapterSlots(config.max_adapters)

    @property
    def num_slots_used(self) -> int:
        return self._num_slots - len(self._free_slots)

    @property
    def has_free_slot(self) -> bool:
        return bool(self._free_slots)

    def with_slots(self) -> list[Sequence]:
        """All sequences that have a slot."""
        rows = self.decodes.batch().sequences
        return [*self.prefills, *rows, *self.drafts, *self.awaited]

    def add_fork(self, sequence: Sequence, position: int) -> None:
        """Adds a fork that shares the blocks of the tokens before `position`."""
        sequence.status = Status.FORKED
        sequence.num_computed = position
        self.forked[sequence] = None

    def can_start(self, sequence: Sequence) -> bool:
        """Whether there is a slot for a sequence, and one for its adapter."""
        return self.has_free_slot and self.adapters.can_start(sequence.request.adapter)

    def start(self, sequence: Sequence) -> None:
        """Gives a slot to a sequence that has its blocks. One must be free (can_start())."""
        self.forked.pop(sequence, None)
        sequence.adapter_slot = self.adapters.acquire(sequence)
        sequence.slot = heapq.heappop(self._free_slots)
        sequence.status = Status.PREFILL
        self.prefills[sequence] = None

    def begin_decode(self, sequence: Sequence, step: int) -> None:
        """All known tokens of a prefill are planned: it decodes from `step` on."""
        del self.prefills[sequence]
        remaining = sequence.limit - len(sequence.output_token_ids) - 1
        if sequence.request.await_tokens and remaining:
            sequence.status = Status.DRAFT
            self.awaited[sequence] = None
        else:
            self.decodes.add(sequence, step, sequence.num_computed, remaining)

    def draft(self, sequence: Sequence, token_ids: SequenceOf[int], step: int) -> int:
        """As Scheduler.draft(); `step` is the next to be planned."""
        known = sequence.num_tokens
        room = sequence.limit - len(sequence.output_token_ids) - 1
        count = min(len(token_ids), self._max_draft_tokens, room)
        if sequence.status is not Status.DECODE or sequence.position(step) != known - 1:
            return 0
        if count > 0:
            self.decodes.remove(sequence, step)
            sequence.status = Status.DRAFT
            self.drafts[sequence] = tuple(token_ids[:count])
        return max(count, 0)

    def await_drafts(self) -> None:
        """The step that verifies all drafts is planned."""
        self.awaited.update(dict.fromkeys(self.drafts))
        self.drafts.clear()

    def resume(self, sequence: Sequence, step: int) -> None:
        """The tokens of an awaited sequence are known: it goes on in `step`."""
        del self.awaited[sequence]
        if sequence.request.await_tokens:
            sequence.num_computed = sequence.num_tokens - 1
            self.drafts[sequence] = ()
        else:
            remaining = sequence.limit - len(sequence.output_token_ids)
            self.decodes.add(sequence, step, sequence.num_tokens - 1, remaining)

    @property
    def all_decode(self) -> bool:
        """Whether all of them get one token in every step."""
        return not (self.forked or self.prefills or self.drafts or self.awaited)

    def remove(self, sequence: Sequence, step: int) -> None:
        """Removes a sequence before `step` is planned; its slot is free. The caller sets its next
        status."""
        status = sequence.status
        if status is Status.DECODE:
            self.decodes.remove(sequence, step)
        elif status is Status.PREFILL:
            del self.prefills[sequence]
        elif status is Status.FORKED:
            del self.forked[sequence]
        elif status is Status.DRAFT:
            self.drafts.pop(sequence, None)
            self.awaited.pop(sequence, None)
        if sequence.slot >= 0:
            heapq.heappush(self._free_slots, sequence.slot)
            sequence.slot = -1
            self.adapters.release(sequence)
            sequence.adapter_slot = None
