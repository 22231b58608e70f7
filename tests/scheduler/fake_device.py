"""A device without a model: it keeps KV in blocks, and finds it only by what plans say.

The KV of a token is a digest of all tokens up to it, so that a block with the right tokens at the
wrong position, or after another prefix, is detected. Every entry that a step reads
is compared with what it must be.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from scheduler import Request, SchedulerConfig, Sequence, StepPlan

VOCABULARY = 7
Entry = tuple[int, bytes]  # position, digest of all tokens up to it


def extend(digest: bytes, token: int) -> bytes:
    """The KV of one more token."""
    return blake2b(digest + bytes([token]), digest_size=8).digest()


def sample(digest: bytes, seed: int, output_position: int) -> int:
    """The model and the sampler: a draw keyed by seed and output position, from all tokens."""
    key = b"%s:%d:%d" % (digest, seed, output_position)
    return blake2b(key, digest_size=4).digest()[0] % VOCABULARY


def seed_of(request: Request, index: int) -> int:
    return 1000 * (request.payload or 0) + index


def root_of(request: Request) -> bytes:
    """What all KV depends on besides tokens."""
    return repr(request.adapter).encode()


def continue_alone(
    request: Request, index: int, output: list[int], max_model_len: int
) -> list[int]:
    """The whole output that a request gets with the device for itself, from `output` on."""
    digest = root_of(request)
    for token in request.prompt_token_ids + output:
        digest = extend(digest, token)
    output = list(output)
    length = len(request.prompt_token_ids)
    room = max(1, max_model_len - length)  # a prompt that fills it has one token
    while len(output) < min(request.max_tokens, room):
        output.append(sample(digest, seed_of(request, index), len(output)))
        if output[-1] in request.stop_token_ids and len(output) >= request.min_tokens:
            break
        digest = extend(digest, output[-1])
    return output


@dataclass
class Slot:
    """What the device knows of a running sequence.

    digests: the KV that each of its computed tokens must have, in order.
    """

    sequence: Sequence
    table: list[dict[int, int]]
    digests: list[bytes]
    num_outputs: int
    adapter_slot: int | None = None
    last_token: int = -1

    def compute(self, token: int) -> None:
        before = self.digests[-1] if self.digests else root_of(self.sequence.request)
        self.digests.append(extend(before, token))


@dataclass
class Work:
    """A row: tokens to compute from `start` on, of which the last may be drafts."""

    slot: Slot
    start: int
    tokens: list[int]
    drafts: int = 0
    samples: bool = True


class FakeDevice:
    """Runs plans in order."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.windows = [group.window for group in config.cache_groups]
        self.size = config.block_size
        self.kv: dict[tuple[int, int], Entry] = {}
        self.slots: dict[int, Slot] = {}
        self.adapters: dict[int, bytes | None] = {}  # by adapter slot
        self.steps = 0

    def run(self, plan: StepPlan) -> tuple[list[int], list[list[int]]]:
        """Returns what update() takes: sampled ids a row, and all ids of each drafted row."""
        assert plan.step == self.steps
        self.steps += 1
        self._apply(plan)
        works = [
            Work(slot, len(slot.digests), [slot.last_token])
            for slot in (self.slots[index] for index in plan.decode_slots)
        ]
        for draft in plan.drafts:
            works[draft.row].tokens += draft.token_ids
            works[draft.row].drafts = len(draft.token_ids)
        for chunk in plan.chunks:
            slot = self.slots[chunk.slot]
            assert chunk.start == len(slot.digests)
            works.append(Work(slot, chunk.start, list(chunk.token_ids), samples=chunk.samples))
        assert len({id(work.slot) for work in works}) == len(works), "a slot has two rows"
        assert sum(len(work.tokens) for work in works) == plan.num_tokens
        for work in works:
            own = work.slot.adapter_slot
            adapter = None if own is None else self.adapters[own]
            assert adapter == work.slot.sequence.request.adapter, "a row has another's adapter"
            self._write(work)
        sampled, drafted = [], []
        for work in works:  # all KV of a step is written before any is read
            self._check_reads(work)
            tokens = self._sample(work)
            sampled.append(tokens[-1] if tokens else -1)
            if work.drafts:
                drafted.append(tokens)
        return sampled, drafted

    def _apply(self, plan: StepPlan) -> None:
        for source, target in plan.copies:
            self._copy(source, target)
        for slot, sequence in plan.loads:
            assert 0 <= slot < self.config.max_adapters
            self.adapters[slot] = sequence.request.adapter
        for start in plan.starts:
            sequence = start.sequence
            tables = [dict(enumerate(ids)) for ids in start.block_ids]
            outputs = len(sequence.output_token_ids)
            slot = Slot(sequence, tables, [], outputs, start.adapter_slot)
            for token in sequence.token_ids(0, start.num_computed_tokens):
                slot.compute(token)
            self.slots[start.slot] = slot
        for slot, group, index, block in plan.new_blocks:
            self.slots[slot].table[group][index] = block

    def _copy(self, source: int, target: int) -> None:
        for offset in range(self.size):
            self.kv.pop((target, offset), None)
            if (source, offset) in self.kv:
                self.kv[target, offset] = self.kv[source, offset]

    def _place(self, slot: Slot, group: int, position: int) -> tuple[int, int]:
        block = slot.table[group][position // self.size]
        assert block != 0, "the null block was read or written"
        return block, position % self.size

    def _write(self, work: Work) -> None:
        for position, token in enumerate(work.tokens, work.start):
            work.slot.compute(token)
            for group in range(len(self.windows)):
                place = self._place(work.slot, group, position)
                self.kv[place] = (position, work.slot.digests[position])

    def _check_reads(self, work: Work) -> None:
        """All that the row's tokens attend to is the KV of its own prefix."""
        for group, window in enumerate(self.windows):
            first = 0 if window is None else max(0, work.start - window + 1)
            for position in range(first, work.start + len(work.tokens)):
                found = self.kv.get(self._place(work.slot, group, position))
                assert found == (position, work.slot.digests[position])

    def _sample(self, work: Work) -> list[int]:
        """The drafts accepted and the token sampled after them; none if the row doesn't sample."""
        if not work.samples:
            return []
        slot, tokens = work.slot, []  # type: Slot, list[int]
        seed = seed_of(slot.sequence.request, slot.sequence.index)
        for at in range(len(work.tokens) - work.drafts - 1, len(work.tokens)):
            digest = slot.digests[work.start + at]
            tokens.append(sample(digest, seed, slot.num_outputs + len(tokens)))
            if at + 1 < len(work.tokens) and work.tokens[at + 1] != tokens[-1]:
                break
        del slot.digests[len(slot.digests) - (work.drafts + 1 - len(tokens)) :]
        slot.num_outputs += len(tokens)
        slot.last_token = tokens[-1]
        return tokens
