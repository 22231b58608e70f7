"""The times at which requests are sent."""

from __future__ import annotations

import math
import random


def arrival_times(
    count: int, rate: float, burstiness: float = 1.0, ramp_up_s: float = 0.0, seed: int = 0
) -> list[float]:
    """Times in seconds, ascending, at which `count` requests are sent.

    The gaps are gamma-distributed with shape `burstiness` and mean 1 / rate, as in vLLM's
    benchmark: exponential (a Poisson process) at 1, with coefficient of variation
    1 / sqrt(burstiness). During the ramp-up the rate grows linearly from 0 to `rate`.

    Args:
        rate: requests a second; if infinite, all are sent at 0.
    """
    if math.isinf(rate):
        return [0.0] * count
    draws = random.Random(f"arrivals-{seed}")
    expected, times = 0.0, []  # `expected`: number of arrivals of a process of this rate so far
    for _ in range(count):
        even = math.isinf(burstiness)
        expected += 1.0 if even else draws.gammavariate(burstiness, 1.0 / burstiness)
        times.append(_time_of(expected, rate, ramp_up_s))
    return times


def _time_of(expected: float, rate: float, ramp_up_s: float) -> float:
    """Inverse of the integral of the rate: rate t^2 / 2 ramp up to the ramp's end, then linear."""
    in_ramp = rate * ramp_up_s / 2
    if expected < in_ramp:
        return math.sqrt(2 * expected * ramp_up_s / rate)
    return ramp_up_s + (expected - in_ramp) / rate
