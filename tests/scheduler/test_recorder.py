"""What a watch of the scheduler reports. That it is complete, whatever happens, is tested in
test_properties.py."""

from __future__ import annotations

from scheduler import CacheGroup, EndedSequence, Scheduler
from tests.scheduler.harness import Loop, make_config
from tests.scheduler.watcher import Watcher


def test_nothing_is_recorded_without_a_watch() -> None:
    loop = Loop(make_config())
    loop.add_prompt("a", [1] * 9)
    loop.run()
    assert loop.scheduler.tables.pool.changed is None
    Watcher(loop.scheduler).recorder.close()
    loop.add_prompt("b", [1] * 9)
    loop.run()
    assert loop.scheduler.tables.pool.changed is None


def test_a_watch_that_begins_late_reports_all() -> None:
    loop = Loop(make_config())
    loop.add_prompt("a", [1] * 9)
    for _ in range(3):
        loop.step()
    watcher = Watcher(loop.scheduler)
    watcher.look()
    watcher.check(loop.sequences)
    assert list(watcher.names.values()) == [("a", 0)]
    loop.step()
    assert watcher.look().blocks == []  # in the middle of a block nothing changes but the tokens
    watcher.check(loop.sequences)


def test_a_shared_prefix_and_its_copies() -> None:
    loop = Loop(make_config())
    watcher = Watcher(loop.scheduler)
    loop.add_prompt("a", [1] * 10, n=3)
    loop.step()
    watcher.look()
    assert sorted(watcher.blocks.values())[-3:] == [3, 3, 3]  # the partial one, too, is shared
    loop.step()
    watcher.look()
    first, second, third = (watcher.tables[key, 0] for key in sorted(watcher.names))
    assert first[:2] == second[:2] == third[:2]
    assert len({first[2], second[2], third[2]}) == 3
    assert loop.scheduler.stats().copies == 2
    loop.run()
    watcher.look()
    watcher.check(loop.sequences)
    assert watcher.names == {}
    assert set(watcher.blocks.values()) == {0, -1}  # full blocks stay in the cache


def test_a_preemption_is_reported_as_one() -> None:
    loop = Loop(make_config(num_blocks=6, max_num_batched_tokens=16))
    watcher = Watcher(loop.scheduler)
    loop.add_prompt("a", [1] * 8, max_tokens=8)
    loop.add_prompt("b", [2] * 8, max_tokens=8)
    ended: list[EndedSequence] = []
    while loop.scheduler.has_unfinished:
        loop.step()
        ended += watcher.look().ended
        watcher.check(loop.sequences)
    assert loop.scheduler.stats().preemptions == sum(e.preempted for e in ended) == 1
    assert len(ended) == 3  # "b" twice, under two keys
    assert len({e.key for e in ended}) == 3


def test_released_blocks_of_a_window() -> None:
    groups = (CacheGroup(), CacheGroup(4))
    loop = Loop(make_config(cache_groups=groups, max_num_batched_tokens=8))
    watcher = Watcher(loop.scheduler)
    loop.add_prompt("a", [1] * 5, max_tokens=20)
    for _ in range(16):
        loop.step()
        watcher.look()
        watcher.check(loop.sequences)
    (key,) = watcher.names
    assert watcher.tables[key, 1][:3] == [0, 0, 0]
    assert 0 not in watcher.tables[key, 0]


def test_evictions_are_counted() -> None:
    loop = Loop(make_config(num_blocks=5))
    loop.add_prompt("a", [1] * 9, max_tokens=4)
    loop.run()
    assert loop.scheduler.stats().evictions == 0
    loop.add_prompt("b", [2] * 12, max_tokens=4)
    loop.run()
    assert loop.scheduler.stats().evictions == 3  # four blocks, of which one held nothing


def test_chunks_are_told_by_key() -> None:
    loop = Loop(make_config(max_num_batched_tokens=12))
    watcher = Watcher(loop.scheduler)
    loop.add_prompt("a", [1] * 9)
    loop.add_prompt("b", [2] * 9)
    plan = loop.schedule()
    assert plan is not None
    prompts = watcher.recorder.prompts(plan)
    watcher.look()
    assert [(watcher.names[key], tokens) for key, tokens in prompts] == [
        (("a", 0), 9),
        (("b", 0), 3),
    ]


def test_a_large_pool_comes_in_parts() -> None:
    scheduler = Scheduler(make_config(num_blocks=10_001))
    watcher = Watcher(scheduler)
    sizes = []
    while watcher.recorder.has_more:
        sizes.append(len(watcher.look().blocks))
    assert sizes == [4096, 4096, 10_000 - 2 * 4096]
    assert set(watcher.blocks.values()) == {0}


def test_the_queue_is_told_in_order_up_to_a_limit() -> None:
    loop = Loop(make_config(max_num_seqs=1, policy="priority"))
    watcher = Watcher(loop.scheduler)
    for n in range(50):
        loop.add_prompt(str(n), priority=n * 7 % 50)
    waiting = watcher.look().waiting
    assert waiting is not None
    assert [w.request_id for w in waiting] == [
        str(n) for n in sorted(range(50), key=lambda n: n * 7 % 50)[:32]
    ]
    assert watcher.look().waiting is None  # nothing has changed
