"""In any order of arrivals, forks, drafts, aborts, preemptions each request gets its own tokens.

SCHEDULER_EXAMPLES sets how many runs are tried (a long run: SCHEDULER_EXAMPLES=1000000).
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler import (
    CacheGroup,
    QueueFullError,
    RequestTooLongError,
    SchedulerConfig,
    Sequence,
)
from scheduler.request import Status
from tests.scheduler.fake_device import VOCABULARY
from tests.scheduler.harness import Loop, make_request
from tests.scheduler.watcher import Watcher

TOKENS = st.integers(0, VOCABULARY - 1)
PREFIX = [3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 0, 2, 6, 4, 3, 3]

windows = st.integers(1, 9).map(CacheGroup)
groups = st.one_of(
    st.just((CacheGroup(),)),
    st.tuples(st.just(CacheGroup()), windows),
    st.tuples(windows, windows),
)


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    max_num_seqs, max_draft_tokens = draw(st.integers(1, 5)), draw(st.sampled_from((0, 0, 3)))
    return SchedulerConfig(
        num_blocks=draw(st.integers(5, 24)),
        block_size=draw(st.sampled_from((1, 2, 4))),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs * (1 + max_draft_tokens) + draw(st.integers(0, 12)),
        max_model_len=draw(st.integers(8, 40)),
        enable_prefix_caching=draw(st.booleans()),
        policy=draw(st.sampled_from(("fcfs", "priority", "longest-prefix"))),
        max_queued_requests=draw(st.sampled_from((None, 6))),
        cache_groups=draw(groups),
        max_draft_tokens=max_draft_tokens,
        enable_events=draw(st.booleans()),
        max_adapters=draw(st.sampled_from((0, 1, 2))),
    )


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(config=configs(), depth=st.integers(1, 3))
    def start(self, config: SchedulerConfig, depth: int) -> None:
        self.loop, self.depth, self.arrived = Loop(config), depth, 0
        self.watcher: Watcher | None = None

    def pick(self, data: st.DataObject, needs_output: bool = False) -> Sequence | None:
        alive = [
            sequence
            for sequence in self.loop.sequences
            if sequence.finish_reason is None and (sequence.output_token_ids or not needs_output)
        ]
        return data.draw(st.sampled_from(alive)) if alive else None

    @rule(
        shared=st.integers(0, len(PREFIX)),
        tail=st.lists(TOKENS, min_size=1, max_size=8),
        max_tokens=st.integers(1, 14),
        stop=st.frozensets(TOKENS, max_size=2),
        min_tokens=st.integers(0, 4),
        priority=st.integers(0, 2),
        salt=st.sampled_from((None, None, "a")),
        n=st.sampled_from((1, 1, 1, 3)),
        reads_cache=st.sampled_from((True, True, False)),
        adapter=st.sampled_from((None, b"x", b"y", b"z")),
    )
    def add(
        self,
        shared: int,
        tail: list[int],
        max_tokens: int,
        stop: frozenset[int],
        min_tokens: int,
        priority: int,
        salt: str | None,
        n: int,
        reads_cache: bool,
        adapter: bytes | None,
    ) -> None:
        self.arrived += 1
        request = make_request(
            str(self.arrived),
            PREFIX[:shared] + tail,
            max_tokens=max_tokens,
            stop_token_ids=stop,
            min_tokens=min_tokens,
            priority=priority,
            cache_salt=salt,
            n=n,
            payload=self.arrived,
            read_prefix_cache=reads_cache,
            adapter=adapter if self.loop.config.max_adapters else None,
        )
        scheduler, most = self.loop.scheduler, self.loop.config.max_queued_requests
        if len(request.prompt_token_ids) > scheduler.max_model_len:
            with pytest.raises(RequestTooLongError):
                self.loop.add(request)
        elif most is not None and len(scheduler._waiting) >= most:
            with pytest.raises(QueueFullError):
                scheduler.check_queue()
        else:
            scheduler.check_queue()
            self.loop.add(request)

    @rule(steps=st.integers(1, 8))
    def advance(self, steps: int) -> None:
        for _ in range(steps):
            plan = self.loop.schedule()
            if self.loop.pending and (plan is None or len(self.loop.pending) >= self.depth):
                self.loop.update()

    @rule()
    def schedule(self) -> None:
        if len(self.loop.pending) < self.depth:
            self.loop.schedule()

    @rule(steps=st.integers(1, 9))
    def schedule_several(self, steps: int) -> None:
        if self.loop.scheduler.is_steady(steps):
            self.loop.schedule_several(steps)

    @rule()
    def update(self) -> None:
        if self.loop.pending:
            self.loop.update()

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if sequence := self.pick(data):
            self.loop.abort(sequence.request.request_id)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if sequence := self.pick(data):
            self.loop.end(sequence, data.draw(st.sampled_from(("abort", "stop"))))

    @rule(data=st.data(), token=TOKENS, drops_parent=st.booleans())
    def fork(self, data: st.DataObject, token: int, drops_parent: bool) -> None:
        if sequence := self.pick(data, needs_output=True):
            self.loop.fork(sequence, token)
            if drops_parent:
                self.loop.end(sequence)

    @precondition(lambda self: self.loop.config.max_draft_tokens)
    @rule(data=st.data(), wrong=st.integers(0, 4))
    def draft(self, data: st.DataObject, wrong: int) -> None:
        """Guesses for all that decode: right up to a place."""
        for sequence in self.loop.sequences:
            if sequence.status is Status.DECODE:
                known = len(sequence.output_token_ids)
                guess = self.loop.expected[sequence][known : known + 4]
                guess[wrong:] = [(token + 1) % VOCABULARY for token in guess[wrong:]]
                self.loop.scheduler.draft(sequence, guess)

    @rule()
    def reset_prefix_cache(self) -> None:
        used = self.loop.scheduler.stats().blocks_used
        assert self.loop.scheduler.reset_prefix_cache() is (used == 0)

    @rule()
    def watch(self) -> None:
        self.watcher = Watcher(self.loop.scheduler)

    @precondition(lambda self: self.watcher is not None)
    @rule()
    def look(self) -> None:
        assert self.watcher is not None
        self.watcher.look()
        self.watcher.check(self.loop.sequences)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "loop"):
            self.loop.check()

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.run(self.depth)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=int(os.environ.get("SCHEDULER_EXAMPLES", "80")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
