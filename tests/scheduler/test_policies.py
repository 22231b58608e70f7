"""In which order waiting requests start."""

from __future__ import annotations

from scheduler import Sequence
from scheduler.policies import LongestPrefix
from tests.scheduler.harness import Loop, make_config

WARM = [3] * 12


def order_of_starts(loop: Loop) -> list[str]:
    return [s.sequence.request.request_id for plan in loop.plans for s in plan.starts]


def test_fcfs_is_the_order_of_arrival() -> None:
    loop = Loop(make_config(max_num_seqs=1))
    for name in "cab":
        loop.add_prompt(name, priority=ord(name))
    loop.run()
    assert order_of_starts(loop) == ["c", "a", "b"]


def test_priority_is_the_lowest_number_then_the_earliest() -> None:
    loop = Loop(make_config(max_num_seqs=1, policy="priority"))
    for name, priority, time in (("a", 1, 2.0), ("b", 0, 3.0), ("c", 1, 1.0), ("d", 1, 2.0)):
        loop.add_prompt(name, priority=priority, arrival_time=time)
    loop.run()
    assert order_of_starts(loop) == ["b", "c", "a", "d"]


def test_longest_prefix_takes_the_most_cached_first() -> None:
    loop = Loop(make_config(max_num_seqs=1, policy="longest-prefix"))
    loop.add_prompt("warm", WARM)
    loop.run()
    loop.add_prompt("cold", [5] * 9)
    loop.add_prompt("half", [*WARM[:5], 5, 5, 5, 5])
    loop.add_prompt("whole", [*WARM, 1])
    loop.run()
    assert order_of_starts(loop) == ["warm", "whole", "half", "cold"]


def test_under_longest_prefix_no_request_waits_for_ever() -> None:
    loop = Loop(make_config(max_num_seqs=1, policy="longest-prefix"))
    loop.add_prompt("warm", WARM)
    loop.run()
    cold = loop.add_prompt("cold", [5] * 9, max_tokens=1)
    waited = 0
    while cold.finish_reason is None:
        loop.add_prompt(f"hot{waited}", [*WARM, waited % 7], max_tokens=1)
        loop.step()
        waited += 1
        assert waited <= LongestPrefix.MAX_OVERTAKEN + 1
    loop.run()


def test_longest_prefix_looks_at_a_fixed_number_of_requests() -> None:
    looked: list[Sequence] = []

    def count(sequence: Sequence) -> int:
        looked.append(sequence)
        return 0

    policy = LongestPrefix(count)
    loop = Loop(make_config())
    for number in range(100):
        loop.add_prompt(str(number))
        policy.push(loop.sequences[-1])
    assert policy.peek() is loop.sequences[0]
    assert len(looked) == LongestPrefix.NUM_CANDIDATES
    loop.run()


def test_ended_requests_leave_the_queue_of_every_policy() -> None:
    for policy in ("fcfs", "priority", "longest-prefix"):
        loop = Loop(make_config(max_num_seqs=1, policy=policy))
        for number in range(60):
            loop.add_prompt(str(number), max_tokens=1)
        for number in range(0, 60, 2):
            loop.abort(str(number))
        assert loop.scheduler.stats().waiting == 30
        loop.run()
        assert order_of_starts(loop) == [str(number) for number in range(1, 60, 2)]
