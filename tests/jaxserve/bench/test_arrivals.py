from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from jaxserve.bench.arrivals import arrival_times


def gaps(times: list[float]) -> np.ndarray:
    return np.diff([0.0, *times])


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_of_the_rate_and_the_spread_of_the_burstiness(burstiness: float) -> None:
    found = gaps(arrival_times(20_000, 8.0, burstiness))
    assert found.mean() == pytest.approx(1 / 8, rel=0.05)
    assert found.std() / found.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_a_poisson_process_has_exponential_gaps() -> None:
    found = np.sort(gaps(arrival_times(20_000, 8.0)))
    # Kolmogorov-Smirnov against 1 - exp(-rate t); 1.63 / sqrt(n) is the 1 % point.
    ranks = np.arange(1, len(found) + 1) / len(found)
    assert np.abs(ranks - (1 - np.exp(-8.0 * found))).max() < 1.63 / math.sqrt(len(found))


def test_infinite_burstiness_is_a_clock_and_an_infinite_rate_all_at_once() -> None:
    assert arrival_times(3, 4.0, math.inf) == [0.25, 0.5, 0.75]
    assert arrival_times(3, math.inf) == [0.0, 0.0, 0.0]


def test_ramp_up_reaches_the_rate_linearly() -> None:
    times = arrival_times(60, 10.0, math.inf, ramp_up_s=4.0)
    # The integral of 2.5 t is 20 at the ramp's end: sqrt(20 / 1.25) = 4; then 10 a second.
    assert times[19] == pytest.approx(4.0)
    assert times[4] == pytest.approx(2.0)
    assert times[59] == pytest.approx(8.0)
    assert all(before < after for before, after in pairwise(times))


def test_a_seed_reproduces() -> None:
    assert arrival_times(9, 2.0, seed=3) == arrival_times(9, 2.0, seed=3)
    assert arrival_times(9, 2.0, seed=3) != arrival_times(9, 2.0, seed=4)
