"""A device without a model: it keeps KV in blocks, and reads it only through what plans told it.

The KV of a token is a digest of all tokens up to it, so that a block with the right tokens in the
wrong place, or after another prefix, doesn't pass for the right one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

from scheduler import Request, SchedulerConfig, Sequence, StepPlan

VOCABULARY = 7
Entry = tuple[int, bytes]  # position, digest of all tokens up to it


def extend(digest: bytes, token: int) -> bytes:
    return blake2b(digest + bytes([token]), digest_size=8).digest()


def sample(digest: bytes, seed: int, output_position: int) -> int:
    """The model and the sampler: a draw keyed by seed and output position, from all tokens."""
    key = b"%s:%d:%d" % (digest, seed, output_position)
    return blake2b(key, digest_size=4).digest()[0] % VOCABULARY


def seed_of(request: Request, index: int) -> int:
    return 1000 * (request.payload or 0) + index


def root_of(request: Request) -> bytes:
    """What the KV depends on besides tokens."""
    return repr((request.adapter, request.media)).encode()


def generate_alone(request: Request, index: int, max_model_len: int) -> list[int]:
    """The output that a request gets with the device for itself."""
    digest = root_of(request)
    for token in request.prompt_token_ids:
        digest = extend(digest, token)
    output: list[int] = []
    while len(output) < request.max_tokens:
        output.append(sample(digest, seed_of(request, index), len(output)))
        if output[-1] in request.stop_token_ids and len(output) >= request.min_tokens:
            break
        if len(request.prompt_token_ids) + len(output) >= max_model_len:
            break
        digest = extend(digest, output[-1])
    return output


@dataclass
class Slot:
    sequence: Sequence
    table: list[dict[int, int]]
    num_computed: int
    num_outputs: int
    last_token: int = -1


@dataclass
class Work:
    """A row: tokens to compute from `start` on."""

    slot: Slot
    start: int
    tokens: list[int]
    drafts: int = 0
    samples: bool = True
    digests: list[bytes] = field(default_factory=list)


class FakeDevice:
    """Runs plans in order."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.windows = [group.window for group in config.cache_groups]
        self.size = config.block_size
        self.kv: dict[tuple[int, int], Entry] = {}
        self.host: dict[tuple[int, int], Entry] = {}
        self.slots: dict[int, Slot] = {}
        self.steps = 0

    def run(self, plan: StepPlan) -> tuple[list[int], list[list[int]]]:
        """Returns what update() takes: sampled ids a row, and all ids of each drafted row."""
        assert plan.step == self.steps
        self.steps += 1
        self._apply(plan)
        works = [
            Work(slot, slot.num_computed, [slot.last_token])
            for slot in (self.slots[index] for index in plan.decode_slots)
        ]
        for draft in plan.drafts:
            works[draft.row].tokens += draft.token_ids
            works[draft.row].drafts = len(draft.token_ids)
        for chunk in plan.chunks:
            slot = self.slots[chunk.slot]
            assert chunk.start == slot.num_computed
            works.append(Work(slot, chunk.start, list(chunk.token_ids), samples=chunk.samples))
        assert len({id(work.slot) for work in works}) == len(works), "a slot has two rows"
        assert sum(len(work.tokens) for work in works) == plan.num_tokens
        self._write(works)
        sampled, drafted = [], []
        for work in works:
            tokens = self._sample(work)
            sampled.append(tokens[-1] if tokens else -1)
            if work.drafts:
                drafted.append(tokens)
        return sampled, drafted

    def _apply(self, plan: StepPlan) -> None:
        for source, target in plan.swap_outs:
            self._copy(self.kv, source, self.host, target)
        for source, target in plan.copies:
            self._copy(self.kv, source, self.kv, target)
        for source, target in plan.swap_ins:
            self._copy(self.host, source, self.kv, target)
        for start in plan.starts:
            self.slots[start.slot] = Slot(
                start.sequence,
                [dict(enumerate(ids)) for ids in start.block_ids],
                start.num_computed_tokens,
                len(start.sequence.output_token_ids),
            )
        for slot, group, index, block in plan.new_blocks:
            self.slots[slot].table[group][index] = block

    def _copy(
        self,
        source: dict[tuple[int, int], Entry],
        source_block: int,
        target: dict[tuple[int, int], Entry],
        target_block: int,
    ) -> None:
        for offset in range(self.size):
            target.pop((target_block, offset), None)
            if (source_block, offset) in source:
                target[target_block, offset] = source[source_block, offset]

    def _place(self, slot: Slot, group: int, position: int) -> tuple[int, int]:
        block = slot.table[group][position // self.size]
        assert block != 0, "the null block was read or written"
        return block, position % self.size

    def _write(self, works: list[Work]) -> None:
        """All rows' KV: a row that continues what another writes in this step comes after it."""
        todo = list(works)
        while todo:
            pending = {
                self._place(work.slot, 0, work.start + i)
                for work in todo
                for i in range(len(work.tokens))
            }
            ready = [
                work
                for work in todo
                if work.start == 0 or self._place(work.slot, 0, work.start - 1) not in pending
            ]
            assert ready, "rows wait for each other"
            for work in ready:
                self._write_row(work)
                todo.remove(work)

    def _write_row(self, work: Work) -> None:
        digest = root_of(work.slot.sequence.request)
        if work.start:
            position, digest = self.kv[self._place(work.slot, 0, work.start - 1)]
            assert position == work.start - 1
        for position, token in enumerate(work.tokens, work.start):
            digest = extend(digest, token)
            work.digests.append(digest)
            for group in range(len(self.windows)):
                self.kv[self._place(work.slot, group, position)] = (position, digest)

    def _sample(self, work: Work) -> list[int]:
        slot, request = work.slot, work.slot.sequence.request
        seed = seed_of(request, slot.sequence.index)
        for position, digest in enumerate(work.digests, work.start):
            self._check_reads(slot, position, digest)
        if not work.samples:
            slot.num_computed += len(work.tokens)
            return []
        tokens = []
        for step in range(len(work.tokens) - work.drafts - 1, len(work.tokens)):
            token = sample(work.digests[step], seed, slot.num_outputs + len(tokens))
            tokens.append(token)
            if step + 1 < len(work.tokens) and work.tokens[step + 1] != token:
                break
        rejected = work.drafts + 1 - len(tokens)
        slot.num_computed += len(work.tokens) - rejected
        slot.num_outputs += len(tokens)
        slot.last_token = tokens[-1]
        return tokens

    def _check_reads(self, slot: Slot, position: int, digest: bytes) -> None:
        """All that a token at `position` attends to is the KV of its own prefix."""
        for group, window in enumerate(self.windows):
            first = 0 if window is None else max(0, position - window + 1)
            entries = [self.kv[self._place(slot, group, at)] for at in range(first, position + 1)]
            assert [at for at, _ in entries] == list(range(first, position + 1))
            assert entries[-1][1] == digest
            chain = (
                [self.kv[self._place(slot, 0, at)][1] for at in range(position + 1)]
                if (self.windows[0] is None)
                else []
            )
            if chain:
                assert [digest for _, digest in entries] == chain[first:]
