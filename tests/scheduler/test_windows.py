"""Cache groups: blocks before a sliding window are released, and never one that is still read."""

from __future__ import annotations

import pytest

from scheduler import CacheGroup, Scheduler
from tests.scheduler.harness import Loop, make_config

BOTH = (CacheGroup(), CacheGroup(window=6))
ONLY = (CacheGroup(window=6),)


@pytest.mark.parametrize("depth", [1, 2])
def test_blocks_before_the_window_are_released(depth: int) -> None:
    loop = Loop(make_config(cache_groups=BOTH, num_blocks=65))
    sequence = loop.add_prompt("a", [1] * 20, max_tokens=30)
    most = 0
    while loop.scheduler.has_unfinished:
        plan = loop.schedule()  # the device fails if a step reads a block of another sequence
        if plan is None or len(loop.pending) >= depth:
            loop.update()
        if sequence.tables and sequence.num_tokens > 30:
            most = max(most, sum(block != 0 for block in sequence.tables[1]))
    # Six tokens touch three blocks of four at most, and one more may be released a step late.
    assert 0 < most <= 4


def test_a_block_released_while_a_step_in_flight_reads_it_is_not_overwritten_before() -> None:
    loop = Loop(make_config(cache_groups=ONLY, num_blocks=9, max_num_batched_tokens=8))
    for number in range(6):
        loop.add_prompt(str(number), [number] * 12, max_tokens=12)
    loop.run(depth=3)


def test_a_window_bounds_the_memory_of_long_prompts() -> None:
    loop = Loop(
        make_config(cache_groups=ONLY, num_blocks=9, max_num_batched_tokens=4, max_model_len=60)
    )
    assert loop.scheduler.max_model_len == 60  # fifteen blocks long, in a pool of eight
    loop.add_prompt("a", [n % 7 for n in range(50)], max_tokens=5)
    loop.run()


def test_a_hit_needs_the_whole_window_and_all_of_the_full_group() -> None:
    loop = Loop(make_config(cache_groups=BOTH, num_blocks=65))
    prompt = [n % 7 for n in range(24)]
    loop.add_prompt("a", [*prompt, 1], max_tokens=1)
    loop.run()
    second = loop.add_prompt("b", [*prompt, 2], max_tokens=4)
    loop.run()
    assert second.num_cached_tokens == 24
    start = next(s for plan in loop.plans for s in plan.starts if s.sequence is second)
    # The window at token 24 reaches back to token 19, so to block 4.
    assert start.block_ids[1][:4] == (0,) * 4
    assert 0 not in start.block_ids[0]


def test_the_effective_limit_counts_all_groups() -> None:
    both = Scheduler(make_config(cache_groups=(CacheGroup(), CacheGroup()), num_blocks=9))
    assert both.max_model_len == 16
    windowed = Scheduler(
        make_config(
            cache_groups=(CacheGroup(), CacheGroup(window=2)),
            num_blocks=9,
            max_num_seqs=1,
            max_num_batched_tokens=4,
        )
    )
    # The window's group needs three blocks at most: 1 + 4 tokens, and a ragged edge.
    assert windowed.max_model_len == 20
