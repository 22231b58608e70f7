"""When several decode steps may be planned at once."""

from __future__ import annotations

import pytest

from tests.scheduler.harness import Loop, make_config


def steady_steps(loop: Loop) -> int:
    return next(steps for steps in range(100) if not loop.scheduler.is_steady(steps + 1))


def test_up_to_the_first_last_token() -> None:
    loop = Loop(make_config())
    assert steady_steps(loop) == 0
    loop.add_prompt("a", [1] * 6, max_tokens=12)
    loop.add_prompt("b", [2] * 3, max_tokens=9)
    assert steady_steps(loop) == 0
    loop.step()
    assert steady_steps(loop) == 8
    loop.schedule_several(3)
    assert steady_steps(loop) == 5
    loop.schedule_several(5)
    assert steady_steps(loop) == 0  # b has had its last row
    loop.step()
    assert steady_steps(loop) == 2
    loop.run()


def test_not_while_a_request_waits_or_a_prompt_is_computed() -> None:
    loop = Loop(make_config(max_num_seqs=2, max_num_batched_tokens=8))
    loop.add_prompt("a", max_tokens=40)
    loop.step()
    assert loop.scheduler.is_steady(9)
    loop.add_prompt("b", [1] * 12, max_tokens=4)
    loop.add_prompt("c", max_tokens=4)
    for _ in range(2):
        assert not loop.scheduler.is_steady(1)
        loop.step()
    assert not loop.scheduler.is_steady(1)  # c has no slot
    loop.abort("b")
    loop.step()
    assert loop.scheduler.is_steady(3)
    loop.run()


@pytest.mark.parametrize("steps", [1, 4, 5, 9, 13])
def test_only_if_the_blocks_of_all_are_free(steps: int) -> None:
    """Blocks of 4: each begins one in steps 4, 8 and 12 of these, and 4 are free."""
    loop = Loop(make_config(num_blocks=7))
    for name in "ab":
        loop.add_prompt(name, max_tokens=14)
    loop.step()
    assert loop.scheduler.is_steady(steps) is (steps < 12)
    loop.run()
    assert loop.scheduler.stats().preemptions == 1
