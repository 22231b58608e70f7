"""Adapter slots: how many run at once, who waits, and for how long."""

from __future__ import annotations

import pytest

from scheduler import SchedulerError
from scheduler.adapter_turns import AdapterTurns
from tests.scheduler.harness import Loop, make_config, make_request


def names(loop: Loop) -> list[str]:
    """Requests that have a slot, in the order of their slots."""
    running = [s for s in loop.sequences if s.slot >= 0]
    return [s.request.request_id for s in sorted(running, key=lambda s: s.slot)]


def test_no_more_than_max_adapters_run_and_all_end() -> None:
    loop = Loop(make_config(max_adapters=2, max_num_seqs=8))
    for i in range(40):
        loop.add_prompt(str(i), [1, 2, i % 7], adapter=b"%d" % (i % 5), payload=i)
    loop.run()  # which checks after every step how many different ones run


def test_those_whose_adapter_is_there_pass_those_who_wait_for_a_slot() -> None:
    loop = Loop(make_config(max_adapters=1, max_num_seqs=4))
    loop.add_prompt("a", adapter=b"x")
    loop.add_prompt("b", adapter=b"y")
    loop.add_prompt("c", adapter=b"x")
    loop.add_prompt("d")
    loop.step()
    assert names(loop) == ["a", "c", "d"]
    loop.run()


def test_who_waits_for_a_slot_is_overtaken_a_fixed_number_of_times() -> None:
    loop = Loop(make_config(max_adapters=1, max_num_seqs=2, max_num_batched_tokens=8))
    loop.add_prompt("first", adapter=b"x")
    loop.step()
    waiting = loop.add_prompt("waiting", adapter=b"y", max_tokens=2)
    count = 0
    while waiting.slot < 0:
        # There is always another request with the adapter that runs.
        while loop.scheduler.stats().waiting < 3:
            loop.add_prompt(f"x{count}", adapter=b"x", max_tokens=3)
            count += 1
        loop.step()
        assert count < 2 * AdapterTurns.MAX_OVERTAKEN, "it starves"
    assert count >= AdapterTurns.MAX_OVERTAKEN
    loop.run()


def test_an_adapter_stays_in_its_slot_until_another_needs_it() -> None:
    loop = Loop(make_config(max_adapters=2))

    def run(name: str, adapter: bytes) -> list[int]:
        loop.add_prompt(name, adapter=adapter, max_tokens=2)
        before = len(loop.plans)
        loop.run()
        return [slot for plan in loop.plans[before:] for slot, _ in plan.loads]

    assert run("a", b"x") == [0]
    assert run("b", b"y") == [1]
    assert run("c", b"x") == []
    assert run("d", b"z") == [1]  # y was used longest ago
    assert run("e", b"x") == []
    assert run("f", b"y") == [1]


def test_what_was_lost_with_the_device_is_loaded_again() -> None:
    loop = Loop(make_config(max_adapters=2))
    loop.add_prompt("a", adapter=b"x")
    loop.run()
    loop.scheduler.forget_adapters()
    loop.add_prompt("b", adapter=b"x")
    loop.step()
    assert [slot for slot, _ in loop.plans[-1].loads] == [0]
    loop.run()


def test_live_requests_are_counted_by_adapter() -> None:
    loop = Loop(make_config())
    loop.add_prompt("a", adapter=b"x", n=2)
    loop.add_prompt("b", adapter=b"x")
    loop.add_prompt("c", adapter=b"y")
    assert loop.scheduler.live_adapters == {b"x": 2, b"y": 1}
    loop.abort("a")
    assert loop.scheduler.live_adapters == {b"x": 1, b"y": 1}
    loop.run()
    assert loop.scheduler.live_adapters == {}


def test_an_abort_of_the_first_who_waits_resets_the_count() -> None:
    loop = Loop(make_config(max_adapters=1, max_num_seqs=2))
    loop.add_prompt("a", adapter=b"x", max_tokens=20)
    loop.add_prompt("b", adapter=b"y")
    loop.add_prompt("c", adapter=b"z")
    loop.step()
    assert [s.request.request_id for s in loop.scheduler._waiting.head(5)] == ["b", "c"]
    loop.abort("b")
    assert [s.request.request_id for s in loop.scheduler._waiting.head(5)] == ["c"]
    loop.run()


def test_an_adapter_without_slots_is_refused() -> None:
    loop = Loop(make_config(max_adapters=0))
    with pytest.raises(SchedulerError, match="max_adapters is 0"):
        loop.scheduler.add_request(make_request("a", adapter=b"x"))
