"""How the token budget of a step is shared."""

from __future__ import annotations

import pytest

from scheduler import Scheduler, SchedulerConfig
from tests.scheduler.harness import Loop, make_config, make_request


def drive(scheduler: Scheduler) -> tuple[int, list[int]]:
    """Runs a step, all of whose tokens are 1. Returns (decodes, tokens of each chunk)."""
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.update(plan, [1] * (len(plan.decode_slots) + len(plan.chunks)))
    return len(plan.decode_slots), [len(chunk.token_ids) for chunk in plan.chunks]


def test_48_decodes_and_a_3000_token_prompt_under_a_budget_of_2048() -> None:
    scheduler = Scheduler(
        SchedulerConfig(num_blocks=10_000, max_num_seqs=64, max_num_batched_tokens=2048)
    )
    for number in range(48):
        scheduler.add_request(make_request(str(number), [number], max_tokens=100))
    assert drive(scheduler) == (0, [1] * 48)
    scheduler.add_request(make_request("long", list(range(3000)), max_tokens=100))
    assert drive(scheduler) == (48, [2000])
    assert drive(scheduler) == (48, [1000])
    assert drive(scheduler) == (49, [])


def test_56_gib_hold_56_reserved_requests_or_455_paged_ones() -> None:
    bytes_per_token = 2 * 32 * 8 * 128 * 2
    assert bytes_per_token == 131_072
    num_blocks = 56 * 2**30 // (bytes_per_token * 16)
    config = SchedulerConfig(
        num_blocks=num_blocks + 1,
        max_num_seqs=1024,
        max_num_batched_tokens=1 << 20,
        enable_prefix_caching=False,
    )
    for length, fit in ((8_191, 56), (1_000, 455)):
        scheduler = Scheduler(config)
        for number in range(fit + 5):
            scheduler.add_request(make_request(str(number), [1] * length))
        plan = scheduler.schedule()
        assert plan is not None
        assert len(plan.starts) == fit == scheduler.stats().running
        blocks = plan.starts[0].block_ids[0]
        assert len(blocks) == -(-length // 16)
    assert len(blocks) * 16 - 1_000 == 8  # slots wasted


def test_running_prompts_come_before_waiting_ones() -> None:
    loop = Loop(make_config(max_num_batched_tokens=10))
    loop.add_prompt("a", [1] * 25)
    loop.add_prompt("b", [2] * 5)
    plans = [loop.step() for _ in range(3)]
    assert [[len(c.token_ids) for c in plan.chunks] for plan in plans if plan] == [
        [10],
        [10],
        [5, 5],
    ]
    loop.run()


def test_no_more_than_max_num_seqs_run() -> None:
    loop = Loop(make_config(max_num_seqs=2))
    for number in range(5):
        loop.add_prompt(str(number), [number])
    loop.step()
    stats = loop.scheduler.stats()
    assert (stats.running, stats.waiting) == (2, 3)
    loop.run()


def test_the_plan_of_a_steady_decode_is_the_same_slots_and_nothing_else() -> None:
    loop = Loop(make_config())
    loop.add_prompt("a", [1] * 4, max_tokens=12)
    loop.add_prompt("b", [2] * 4, max_tokens=12)
    plans = [loop.step() for _ in range(5)]
    steady = plans[2:5]
    assert all(plan.decode_slots is plans[1].decode_slots for plan in steady)
    assert all(not (p.chunks or p.starts or p.new_blocks or p.copies) for p in steady)
    grown = loop.step().new_blocks
    assert [entry[:3] for entry in grown] == [(0, 0, 2), (1, 0, 2)]


def test_settings_that_can_not_work_are_refused() -> None:
    for changes, name in (
        ({"num_blocks": 1}, "num_blocks"),
        ({"max_num_batched_tokens": 3}, "max_num_batched_tokens"),
        ({"max_draft_tokens": 20}, "max_draft_tokens"),
        ({"max_queued_requests": 0}, "max_queued_requests"),
        ({"cache_groups": ()}, "cache_groups"),
        ({"policy": "lifo"}, "policy"),
    ):
        with pytest.raises(ValueError, match=name):
            Scheduler(make_config(**changes))
