"""The events that a reader gets, put together, are the scheduler's state; and they are small."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from jaxserve.engine.frontend.engine_view import EngineView, Snapshot, StepRecord
from jaxserve.server.api.engine_events import BYTES_PER_S, PERIOD_S
from jaxserve.server.observability.feed_reader import FeedReader
from jaxserve.server.wire.sse import event
from scheduler import CacheGroup
from tests.jaxserve.server.event_state import EventState
from tests.scheduler.harness import Loop, make_config, make_request


class Watched:
    """Readers of a real scheduler, which a fake device runs. Requests need ids as clients make."""

    def __init__(self, **config: Any) -> None:
        self.loop = Loop(make_config(**config))
        self.recorder = self.loop.scheduler.watch()
        self.view = EngineView(self.loop.config.num_blocks)
        self.readers: list[tuple[FeedReader, EventState]] = []

    def add_reader(self) -> None:
        self.readers.append((FeedReader(self.view), EventState()))

    def look(self, steps: tuple[StepRecord, ...] = ()) -> None:
        snapshot = Snapshot(self.recorder.take(), list(steps))
        self.view.take(snapshot.changes)
        for reader, _ in self.readers:
            reader.note(snapshot)

    def send(self, nth: int) -> int:
        """Gives a reader an event; its size in bytes."""
        reader, state = self.readers[nth]
        data = event(({"first": True} if reader.is_first else {}) | reader.event())
        state.take(json.loads(data.removeprefix(b"data: ")))
        return len(data)

    def check(self, nth: int) -> None:
        """Sends a reader all that it lacks, and compares."""
        reader, state = self.readers[nth]
        while reader.has_news:
            self.send(nth)
        pool = self.loop.scheduler.tables.pool
        assert state.blocks == {
            block: pool.references(block) or (-1 if pool.is_cached(block) else 0)
            for block in range(1, pool.num_blocks)
        }
        holders = [s for s in self.loop.sequences if s.tables]
        assert state.names == sorted((s.request.request_id[2:], s.index) for s in holders)
        for key, (name, index, *_) in state.sequences.items():
            (holder,) = (s for s in holders if (s.request.request_id[2:], s.index) == (name, index))
            tables = tuple(state.tables.get((key, g), []) for g in range(len(holder.tables)))
            assert tables == holder.tables
            assert state.tokens[key][1] == holder.num_tokens


@pytest.mark.parametrize("groups", [(CacheGroup(),), (CacheGroup(), CacheGroup(6))])
def test_readers_agree_with_the_scheduler_whatever_they_miss(
    groups: tuple[CacheGroup, ...],
) -> None:
    """One reads each snapshot, one now and then, and one comes later."""
    watched, rng = (
        Watched(num_blocks=24, cache_groups=groups, max_num_batched_tokens=24),
        random.Random(5),
    )
    watched.add_reader()
    watched.add_reader()
    loop = watched.loop
    for n in range(40):
        prompt = [rng.randrange(7) for _ in range(rng.randrange(1, 30))]
        loop.add(make_request(f"0-r{n}", [1] * 8 + prompt, n=rng.choice((1, 3)), max_tokens=24))
        for _ in range(rng.randrange(1, 24)):
            loop.step()
            watched.look()
            watched.check(0)
            if rng.random() < 0.1:
                watched.send(1)
        if n == 20:
            watched.add_reader()
        if n % 10 == 9:
            watched.check(1)
            watched.check(len(watched.readers) - 1)
    loop.run()
    watched.look()
    for nth in range(3):
        watched.check(nth)
        assert watched.readers[nth][1].sequences == {}
    assert loop.scheduler.stats().preemptions > 0
    assert len(watched.readers[0][1].preempted) > 0


def test_a_reader_that_never_saw_a_sequence_is_not_told_of_its_end() -> None:
    watched = Watched()
    watched.add_reader()
    watched.look()
    watched.check(0)
    watched.loop.add(make_request("0-a"))
    watched.look()
    while watched.loop.scheduler.has_unfinished:
        watched.loop.step()
        watched.look()
    watched.check(0)
    assert watched.readers[0][1].names == []


def test_100_000_blocks_and_256_requests_are_told_in_50_kB_a_second() -> None:
    """Eight seconds of a snapshot every 0.1 s, each of five steps of 1,024 tokens, on a pool in no
    order. An event is sent at the pace of the endpoint; the reader keeps up."""
    watched = Watched(
        num_blocks=100_001,
        block_size=16,
        max_num_seqs=256,
        max_num_batched_tokens=1024,
        max_model_len=8192,
    )
    rng, scheduler = random.Random(1), watched.loop.scheduler
    blocks = scheduler.tables.pool.take_many(100_000)
    rng.shuffle(blocks)
    scheduler.tables.pool.release(blocks)
    watched.add_reader()
    arrived, due, sizes = 0, 0.0, []
    for nth in range(80):
        records = []
        for _ in range(5):
            while scheduler.stats().running + scheduler.stats().waiting < 280:
                prompt = [rng.randrange(7) for _ in range(rng.randrange(20, 400))]
                limit = rng.randrange(50, 250)
                scheduler.add_request(make_request(f"0-req-{arrived}", prompt, max_tokens=limit))
                arrived += 1
            plan = scheduler.schedule()
            assert plan is not None
            prompts = watched.recorder.prompts(plan)
            scheduler.update(plan, [0] * (len(plan.decode_slots) + len(plan.chunks)))
            decodes = len(plan.decode_slots)
            records.append(StepRecord(plan.step, decodes, prompts, 1024, 0.02, 0.002))
        watched.look(tuple(records))
        if due <= nth * PERIOD_S:
            sizes.append(watched.send(0))
            due = max(due, (nth - 1) * PERIOD_S) + max(PERIOD_S, sizes[-1] / BYTES_PER_S)
    assert scheduler.stats().running >= 250
    assert max(sizes) < 10_000
    assert sum(sizes) <= 8 * BYTES_PER_S
    reader, _ = watched.readers[0]
    for _ in range(4):  # what is left of the last snapshots
        watched.send(0)
    assert not reader.has_news


def test_steps_that_have_no_room_are_counted() -> None:
    watched = Watched()
    watched.add_reader()
    steps = [StepRecord(n, 1, [(k, 2) for k in range(12)], 16, 0.01, 0.001) for n in range(60)]
    watched.look(tuple(steps))
    news = watched.readers[0][0].event()
    assert news["skipped_steps"] == 35
    assert [step[0] for step in news["steps"]] == list(range(35, 60))
    assert news["steps"][0][5] == [n for k in range(8) for n in (k, 2)] + [-1, 8]


def test_the_last_copies_are_told() -> None:
    watched = Watched()
    watched.add_reader()
    copies = [[(10 * n + k, 10 * n + k + 1) for k in range(0, 10, 2)] for n in range(5)]
    steps = [StepRecord(n, 1, [], 16, 0.01, 0.001, copies[n]) for n in range(5)]
    watched.look(tuple(steps))
    news = watched.readers[0][0].event()
    assert news["copies"] == [pair for some in copies for pair in some][-16:]
    watched.look((StepRecord(5, 1, [], 16, 0.01, 0.001),))
    assert "copies" not in watched.readers[0][0].event()


def test_names_are_cut() -> None:
    watched = Watched()
    watched.add_reader()
    watched.loop.add(make_request("0-" + "x" * 128))
    watched.loop.schedule()
    watched.look()
    watched.send(0)
    assert watched.readers[0][1].names == [("x" * 64, 0)]
