"""Drives a scheduler with the fake device, and checks after every step what must always hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from typing import Any

from scheduler import (
    FinishReason,
    Request,
    Scheduler,
    SchedulerConfig,
    Sequence,
    StepPlan,
    StepResult,
)
from scheduler.request import Status
from tests.scheduler.fake_device import FakeDevice, continue_alone


def make_config(**changes: Any) -> SchedulerConfig:
    """A small scheduler; blocks of 4 tokens."""
    settings = {
        "num_blocks": 33,
        "block_size": 4,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "max_model_len": 64,
        "max_adapters": 2,
    }
    return SchedulerConfig(**(settings | changes))


def make_request(name: str, prompt: SequenceOf[int] = (1,), **changes: Any) -> Request:
    settings: dict[str, Any] = {"max_tokens": 8}
    return Request(name, list(prompt), **(settings | changes))


class Loop:
    """A scheduler, a device, and the plans whose results the scheduler doesn't have yet."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.scheduler = Scheduler(config)
        self.device = FakeDevice(config)
        self.pending: deque[tuple[StepPlan, list[int], list[list[int]]]] = deque()
        self.plans: list[StepPlan] = []
        self.sequences: list[Sequence] = []
        self.expected: dict[Sequence, list[int]] = {}  # output if it is not ended early
        self.streamed: dict[Sequence, list[int]] = {}
        self.cut: dict[Sequence, FinishReason] = {}

    # -- what a client does

    def add(self, request: Request) -> Sequence:
        first = self.scheduler.add_request(request)
        for sequence in self.scheduler.sequences(request.request_id):
            self._watch(sequence)
        return first

    def add_prompt(self, name: str, prompt: SequenceOf[int] = (1,), **changes: Any) -> Sequence:
        return self.add(make_request(name, prompt, **changes))

    def _watch(self, sequence: Sequence) -> None:
        known = list(sequence.output_token_ids)
        self.sequences.append(sequence)
        self.streamed[sequence] = known
        self.expected[sequence] = continue_alone(
            sequence.request, sequence.index, known, self.scheduler.max_model_len
        )

    def abort(self, request_id: str) -> None:
        for sequence in self.scheduler.abort(request_id):
            self.cut[sequence] = "abort"
        self.check()

    def end(self, sequence: Sequence, reason: FinishReason = "abort") -> None:
        if sequence.finish_reason is None:
            self.cut[sequence] = reason
        self.scheduler.end(sequence, reason)
        self.check()

    def fork(self, sequence: Sequence, token: int) -> Sequence:
        child = self.scheduler.fork(sequence, token)
        self._watch(child)
        self.check()
        return child

    # -- what the engine does

    def schedule(self) -> StepPlan | None:
        plan = self.scheduler.schedule()
        if plan is not None:
            assert 0 <= plan.num_tokens <= self.config.max_num_batched_tokens
            self.plans.append(plan)
            self.pending.append((plan, *self.device.run(plan)))
        self.check()
        return plan

    def schedule_several(self, steps: int) -> None:
        """Runs several steps of one dispatch: the device gets all new blocks before the first."""
        plans = [self.scheduler.schedule() for _ in range(steps)]
        new_blocks = tuple(entry for plan in plans if plan for entry in plan.new_blocks)
        for plan in plans:
            assert plan is not None
            slots = plans[0].decode_slots if plans[0] else ()
            assert plan == StepPlan(
                plan.step, slots, new_blocks=plan.new_blocks, num_tokens=len(slots)
            )
            self.plans.append(plan)
            self.pending.append((plan, *self.device.run(replace(plan, new_blocks=new_blocks))))
        self.check()

    def update(self) -> StepResult:
        result = self.scheduler.update(*self.pending.popleft())
        for sequence, token in zip(result.sequences, result.token_ids, strict=True):
            self.streamed[sequence].append(token)
        for sequence in result.finished:
            assert sequence.finish_reason in ("stop", "length")
        self.check()
        return result

    def step(self) -> StepPlan | None:
        """Runs one step and returns its results to the scheduler at once."""
        plan = self.schedule()
        if plan is not None:
            self.update()
        return plan

    def run(self, depth: int = 1, most: int = 5_000) -> None:
        """Runs until all requests have ended, with up to `depth` steps in flight."""
        for _ in range(most):
            if not self.scheduler.has_unfinished and not self.pending:
                break
            plan = self.schedule()
            if self.pending and (plan is None or len(self.pending) >= depth):
                self.update()
            else:
                assert plan is not None, "nothing to do, nothing in flight, and not finished"
        assert not self.scheduler.has_unfinished, "livelock"
        self.check_end()

    # -- what must hold

    def check(self) -> None:
        pool, stats = self.scheduler.tables.pool, self.scheduler.stats()
        usable = self.config.num_blocks - 1
        assert stats.blocks_used + stats.blocks_free == stats.blocks_total == usable
        holders: dict[int, list[tuple[Sequence, int]]] = {}
        for sequence in self.sequences:
            if sequence.finish_reason is not None:
                assert not any(sequence.tables), "an ended sequence holds blocks"
                assert sequence.slot == -1
            for table in sequence.tables:
                for index, block in enumerate(table):
                    if block:
                        holders.setdefault(block, []).append((sequence, index))
        assert pool.references(0) == 0
        for block in range(1, pool.num_blocks):
            assert pool.references(block) == len(holders.get(block, ()))
        for shared in holders.values():
            self._check_shared(shared)
        slots = [sequence.slot for sequence in self.sequences if sequence.slot >= 0]
        assert len(set(slots)) == len(slots) == stats.running
        held = {s.request.adapter for s in self.sequences if s.slot >= 0} - {None}
        assert len(held) <= self.config.max_adapters
        assert held == self.scheduler._running.adapters.held

    def _check_shared(self, holders: list[tuple[Sequence, int]]) -> None:
        """Several tables may hold a block only if it is full, with the same tokens in all of them.

        A fresh fork shares a partial block too, but only until the next step is planned.
        """
        settled = [each for each in holders if each[0].status is not Status.FORKED]
        if len(settled) < 2:
            return
        meanings = set()
        for sequence, index in settled:
            request, stop = sequence.request, (index + 1) * self.config.block_size
            assert sequence.num_tokens >= stop, "a partial block is shared"
            tokens = tuple(sequence.token_ids(0, stop))
            meanings.add((request.adapter, request.cache_salt, tokens))
        assert len(meanings) == 1

    def check_end(self) -> None:
        """All blocks and slots are free, and every request got the output that it gets alone."""
        stats = self.scheduler.stats()
        assert stats.blocks_used == stats.running == stats.waiting == 0
        for sequence in self.sequences:
            output, expected = sequence.output_token_ids, self.expected[sequence]
            assert self.streamed[sequence] == output
            if sequence in self.cut:
                assert sequence.finish_reason == self.cut[sequence]
                assert output == expected[: len(output)]
            else:
                assert sequence.finish_reason in ("stop", "length")
                assert output == expected
                stopped = sequence.finish_reason == "stop"
                assert sequence.stop_reason == (output[-1] if stopped else None)
