"""Out of blocks: which sequences are preempted, and how they go on."""

from __future__ import annotations

from tests.scheduler.harness import Loop, make_config


def tight(**changes: object) -> Loop:
    """Eight blocks: two requests of 9 tokens start, but can't both grow to 23."""
    return Loop(make_config(**({"num_blocks": 9, "max_num_seqs": 3} | changes)))


def test_the_newest_is_preempted_and_its_output_continues() -> None:
    loop = tight()
    first = loop.add_prompt("a", [1] * 9, max_tokens=14)
    second = loop.add_prompt("b", [2] * 9, max_tokens=14)
    loop.run()  # compares with the output alone, and what was streamed with the output
    assert first.num_preemptions == 0
    assert second.num_preemptions > 0
    replays = [s for plan in loop.plans for s in plan.starts if s.sequence is second][1:]
    assert replays
    assert len(second.output_token_ids) == 14


def test_a_victim_goes_back_to_the_front_of_the_queue() -> None:
    loop = tight(max_num_seqs=2)
    loop.add_prompt("a", [1] * 9, max_tokens=14)
    second = loop.add_prompt("b", [2] * 9, max_tokens=14)
    third = loop.add_prompt("c", [3] * 2, max_tokens=4)
    while not second.num_preemptions:
        loop.step()
    assert (second.slot, third.slot) == (-1, -1)
    order = [s.sequence for plan in loop.plans for s in plan.starts]
    loop.run()
    order = [s.sequence for plan in loop.plans for s in plan.starts][len(order) :]
    assert order[0] is second


def test_nothing_starts_in_a_step_that_preempts() -> None:
    loop = tight()
    loop.add_prompt("a", [1] * 9, max_tokens=14)
    second = loop.add_prompt("b", [2] * 9, max_tokens=14)
    while not second.num_preemptions:
        loop.step()
    loop.add_prompt("c", [3], max_tokens=1)
    assert not loop.plans[-1].starts
    loop.run()


def test_priority_preempts_the_lowest_and_then_the_newest() -> None:
    loop = tight(policy="priority", num_blocks=10)
    low = loop.add_prompt("low", [1] * 9, max_tokens=14, priority=5)
    high = loop.add_prompt("high", [2] * 9, max_tokens=14, priority=0)
    newer = loop.add_prompt("newer", [3] * 9, max_tokens=14, priority=0, arrival_time=1.0)
    while not low.num_preemptions:
        loop.step()
    assert (high.num_preemptions, newer.num_preemptions) == (0, 0)
    while not newer.num_preemptions:
        loop.step()
    assert high.num_preemptions == 0
    loop.run()


def test_a_priority_victim_that_was_planned_already_is_unplanned() -> None:
    # All three begin a block in the same step, and one block is free. The lowest, which arrived
    # first, is planned with it, and must then be preempted, and its row be removed.
    loop = tight(policy="priority", num_blocks=11)
    low = loop.add_prompt("low", [1] * 12, max_tokens=8, priority=5)
    loop.add_prompt("b", [2] * 12, max_tokens=8, priority=1)
    loop.add_prompt("c", [3] * 12, max_tokens=8, priority=1)
    loop.step()
    slot = low.slot
    plan = loop.step()
    assert low.num_preemptions == 1
    assert slot not in plan.decode_slots
    assert slot not in [entry[0] for entry in plan.new_blocks]
    assert plan.num_tokens == len(plan.decode_slots) == 2
    loop.run()


def test_a_token_in_flight_for_a_victim_is_delivered() -> None:
    loop = tight()
    loop.add_prompt("a", [1] * 9, max_tokens=14)
    victim = loop.add_prompt("b", [2] * 9, max_tokens=14)
    loop.schedule()
    while not victim.num_preemptions:
        loop.schedule()
        if not victim.num_preemptions:
            loop.update()
    known = len(victim.output_token_ids)
    loop.update()  # the step before the one that preempted it
    assert len(victim.output_token_ids) == known + 1
    assert (victim.slot, victim.num_computed) == (-1, 0)
    loop.run(depth=2)


def test_a_victim_counts_as_started_until_its_token_in_flight_is_known() -> None:
    loop = tight()
    loop.add_prompt("a", [1] * 9, max_tokens=14)
    victim = loop.add_prompt("b", [2] * 9, max_tokens=14)
    loop.schedule()
    while not victim.num_preemptions:
        loop.schedule()
        if not victim.num_preemptions:
            loop.update()
    assert loop.scheduler.started() == ["a", "b"]
    loop.update()
    assert loop.scheduler.started() == ["a"]
    loop.run(depth=2)


def test_a_victim_whose_token_in_flight_is_a_stop_ends() -> None:
    loop = tight()
    loop.add_prompt("a", [1] * 9, max_tokens=14)
    victim = loop.add_prompt("b", [2] * 9, max_tokens=14)
    loop.schedule()
    while not victim.num_preemptions:
        loop.schedule()
        if not victim.num_preemptions:
            loop.update()
    coming = loop.expected[victim][len(victim.output_token_ids)]
    victim.request.stop_token_ids = frozenset((coming,))
    loop.scheduler._registry.stops.add(coming)
    result = loop.update()
    assert result.finished == [victim]
    assert victim.finish_reason == "stop"
    assert loop.scheduler.stats().waiting == 0
    loop.expected[victim] = list(victim.output_token_ids)
    loop.run(depth=2)
