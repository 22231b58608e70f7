"""How many guesses a step verifies follows from what they are worth and cost."""

from __future__ import annotations

import pytest

from jaxserve.engine.core.speculation.gain import USUAL, HitRate, StepTimes, depths


def measured(base: float, a_row: float, gap: float = 0.0) -> StepTimes:
    """Of a device whose steps take base + a_row * rows."""
    times = StepTimes()
    for step in range(400):
        rows = 1 + step % 32
        times.add(rows, base + a_row * rows)
        times.add_gap(gap)
    return times


def test_the_cost_of_a_row_is_found() -> None:
    assert measured(1.0, 0.01).row_cost(10) == pytest.approx(0.01 / 1.1, rel=0.1)
    assert measured(0.1, 0.1).row_cost(16) == pytest.approx(0.1 / 1.7, rel=0.1)
    assert 0 < StepTimes().row_cost(1) < 0.1  # before any step


def test_where_rows_cost_little_likely_guesses_go_far() -> None:
    times = measured(1.0, 0.001)
    assert depths([0.9], [8], 100, times) == [8]
    assert depths([0.3], [8], 100, times)[0] in (4, 5)  # 0.3 ** 5 > 0.001 ...
    assert depths([0.9, 0.01], [8, 8], 100, times) == [8, 1]


def test_where_a_step_is_all_rows_no_guess_pays() -> None:
    times = measured(0.0, 1.0)
    assert depths([0.9] * 16, [8] * 16, 100, times) == [0] * 16


def test_room_goes_to_the_likeliest() -> None:
    assert depths([0.5, 0.9], [8, 8], 3, measured(1.0, 0.0001)) == [0, 3]


def test_a_late_plan_must_pay() -> None:
    assert depths([0.2], [8], 100, measured(1.0, 0.001, gap=0.1)) != [0]
    assert depths([0.2], [8], 100, measured(1.0, 0.001, gap=0.5)) == [0]


def test_hits_are_counted_with_and_without_verification() -> None:
    rate = HitRate()
    assert rate.share == USUAL[0] / USUAL[1]
    output: list[int] = []
    for token in range(40):  # each guess is right, though none is verified
        rate.guessed(len(output), [token, 99])
        output.append(token)
        rate.came(len(output), output[rate.missing_since() :])
    assert rate.share > 0.95
    before = rate.share
    rate.came(len(output), [])  # nothing new
    assert rate.share == before
    for _ in range(40):
        rate.guessed(len(output), [1, 2, 3])
        output.append(7)
        rate.came(len(output), output[rate.missing_since() :])
    assert rate.share < 0.05
