"""Every way to end, in every state, with and without steps in flight."""

from __future__ import annotations

import pytest

from scheduler import Scheduler
from tests.scheduler.fake_device import continue_alone
from tests.scheduler.harness import Loop, make_config, make_request


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_max_tokens(depth: int) -> None:
    for max_tokens in (1, 2, 5, 9):
        loop = Loop(make_config())
        sequence = loop.add_prompt("a", [1] * 6, max_tokens=max_tokens)
        loop.run(depth)
        assert sequence.finish_reason == "length"
        assert len(sequence.output_token_ids) == max_tokens
        # The last step is known in advance, so that no row is planned after it.
        assert sum(plan.num_tokens for plan in loop.plans) == 6 + max_tokens - 1


@pytest.mark.parametrize("depth", [1, 2])
def test_max_model_len(depth: int) -> None:
    loop = Loop(make_config(max_model_len=10))
    sequence = loop.add_prompt("a", [1] * 6, max_tokens=100)
    loop.run(depth)
    assert (sequence.finish_reason, len(sequence.output_token_ids)) == ("length", 4)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_stop_id_ends_and_the_rows_planned_ahead_are_dropped(depth: int) -> None:
    free = continue_alone(make_request("a", [1] * 6, max_tokens=20), 0, [], 64)
    stop = free[7]
    first = free.index(stop)
    loop = Loop(make_config())
    sequence = loop.add_prompt("a", [1] * 6, max_tokens=20, stop_token_ids=frozenset((stop,)))
    loop.run(depth)
    assert sequence.output_token_ids == free[: first + 1]
    assert (sequence.finish_reason, sequence.stop_reason) == ("stop", stop)


def test_a_stop_id_before_min_tokens_does_not_end() -> None:
    free = continue_alone(make_request("a", [1] * 6, max_tokens=20), 0, [], 64)
    for min_tokens in range(12):
        loop = Loop(make_config())
        stop = free[2]
        request = make_request(
            "a",
            [1] * 6,
            max_tokens=20,
            stop_token_ids=frozenset((stop,)),
            min_tokens=min_tokens,
        )
        sequence = loop.add(request)
        loop.run()
        assert len(sequence.output_token_ids) >= min(min_tokens, 20)
        assert stop not in sequence.output_token_ids[max(0, min_tokens - 1) : -1]


def test_a_stop_id_of_one_request_means_nothing_to_another() -> None:
    free = continue_alone(make_request("a", [1] * 6, max_tokens=9), 0, [], 64)
    loop = Loop(make_config())
    loop.add_prompt("a", [1] * 6, max_tokens=9)
    loop.add_prompt("b", [1] * 6, max_tokens=9, stop_token_ids=frozenset(free))
    loop.run()
    assert [len(sequence.output_token_ids) for sequence in loop.sequences] == [9, 1]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("steps", range(7))
def test_abort_at_any_moment_frees_at_once(depth: int, steps: int) -> None:
    """Waiting, between chunks, with the first token in flight, decoding, and in flight."""
    loop = Loop(make_config(max_num_batched_tokens=4))
    loop.add_prompt("a", [1] * 10, max_tokens=20)
    for _ in range(steps):
        loop.schedule()
        if len(loop.pending) >= depth:
            loop.update()
    loop.abort("a")
    stats = loop.scheduler.stats()
    assert (stats.blocks_used, stats.running, stats.waiting) == (0, 0, 0)
    while loop.pending:
        assert loop.update().sequences == []
    loop.check_end()


def test_an_id_can_be_used_again_and_late_rows_do_not_reach_it() -> None:
    loop = Loop(make_config())
    loop.add_prompt("a", [1] * 6)
    loop.schedule()
    loop.schedule()
    loop.abort("a")
    again = loop.add_prompt("a", [2] * 6)
    loop.update()
    loop.update()
    assert again.output_token_ids == []
    loop.run()


def test_abort_of_an_unknown_or_ended_id_does_nothing() -> None:
    scheduler = Scheduler(make_config())
    assert scheduler.abort("nobody") == []
    loop = Loop(make_config())
    sequence = loop.add_prompt("a")
    loop.run()
    assert loop.scheduler.abort("a") == []
    loop.scheduler.end(sequence)
    assert sequence.finish_reason == "length"


def test_a_slot_and_blocks_freed_by_length_serve_the_very_next_step() -> None:
    loop = Loop(make_config(num_blocks=3, max_num_seqs=1))
    loop.add_prompt("a", [1] * 7, max_tokens=1)
    second = loop.add_prompt("b", [2] * 7, max_tokens=1)
    loop.schedule()
    loop.schedule()  # before the first one's token is known
    assert second.slot == 0
    loop.run(depth=2)
