"""The benches' allocators, by hand."""

from __future__ import annotations

import pytest

from bench.paper.allocators import FASTER_TRANSFORMER, MAX, ORACLE, PAGED, POW2, BuddyAllocator
from bench.paper.usage import Usage, usage
from scheduler import Request, Scheduler, SchedulerConfig

PAPER = SchedulerConfig(  # OPT-13B on an A100 of 40 GB: 15,728 token slots
    num_blocks=984, max_model_len=2048, max_num_batched_tokens=16384, enable_prefix_caching=False
)


def test_buddy_splits_the_smallest_run_and_joins_buddies_again() -> None:
    buddy = BuddyAllocator(11)  # runs of 8, 2 and 1 at 0, 8 and 10
    assert buddy.take(2) == 8
    assert buddy.take(3) == 0  # takes 4
    assert (buddy.num_free, buddy.largest) == (5, 4)
    assert buddy.take(5) is None
    assert buddy.take(1) == 10
    assert buddy.take(1) == 4  # splits 4..8 into 4, 5 and 6..8
    assert buddy.largest == 2
    buddy.release(4)
    buddy.release(0)
    assert (buddy.num_free, buddy.largest) == (8, 8)


def run(system, lengths, steps):
    scheduler = Scheduler(PAPER)
    system.install(scheduler)
    sequences = [
        scheduler.add_request(Request(str(i), [0] * prompt, output))
        for i, (prompt, output) in enumerate(lengths)
    ]
    for _ in range(steps):
        plan = scheduler.schedule()
        scheduler.update(plan, [0] * (len(plan.decode_slots) + len(plan.chunks)))
    return scheduler, sequences


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        # 100 + 25 tokens after 6 steps: 105 positions computed of the 124 that will be.
        (PAGED, Usage(105, 7, 0, 0, 15728 - 112)),
        (ORACLE, Usage(105, 19, 1, 3, 15728 - 128)),
        (POW2, Usage(105, 19, 8, 256 - 132, 15728 - 256)),
        (MAX, Usage(105, 19, 2048 - 124, 0, 15728 - 2048)),
    ],
)
def test_parts_of_the_pool_by_hand(system, expected) -> None:
    scheduler, (sequence,) = run(system, [(100, 25)], steps=6)
    assert usage(scheduler, [sequence], None) == expected


def test_seven_reservations_of_the_longest_fit_as_in_the_paper() -> None:
    scheduler, sequences = run(MAX, [(100, 25)] * 9, steps=1)
    assert scheduler.stats().running == 7
    held = usage(scheduler, sequences[:7], sequences[7])
    assert held.total == 15728
    assert held.free == 15728 - 7 * 2048  # less than the next one needs: not fragmented


def test_free_memory_in_pieces_is_external_waste() -> None:
    scheduler, sequences = run(ORACLE, [(900, 100)] * 15 + [(500, 12)], steps=1)
    # 15 runs of 1,024 leave 368 tokens; the last wants 512.
    assert usage(scheduler, sequences[:15], sequences[15]).free == 368
    scheduler.abort("0")
    scheduler.abort("2")
    holders = [s for s in sequences[:15] if s.tables]
    wide = scheduler.add_request(Request("wide", [0] * 1500, 100))
    # 2,048 free tokens would do, but lie in two runs.
    held = usage(scheduler, holders, wide)
    assert held.free == 0
    assert held.external == 13 * 24 + 2048 + 368


def test_whole_batches_wait_for_their_last() -> None:
    scheduler, _ = run(FASTER_TRANSFORMER, [(10, 2)] * 6 + [(10, 9), (10, 2)], steps=8)
    assert (scheduler.stats().running, scheduler.stats().waiting) == (1, 1)
    for _ in range(2):
        plan = scheduler.schedule()
        scheduler.update(plan, [0] * (len(plan.decode_slots) + len(plan.chunks)))
    assert (scheduler.stats().running, scheduler.stats().waiting) == (1, 0)
