"""The virtual clock and its cost models, by hand."""

from __future__ import annotations

import math

import pytest

from bench.paper.allocators import FASTER_TRANSFORMER, PAGED
from bench.paper.clock import Arrival, Outcome, Point, rate_at, simulate
from bench.paper.costs import OPT_13B_A100, Load, Measured
from bench.paper.usage import Usage
from jaxserve.engine.device.buckets import Bucket, BucketTable
from scheduler import SchedulerConfig

CONFIG = SchedulerConfig(
    num_blocks=984, max_model_len=2048, max_num_batched_tokens=2048, enable_prefix_caching=False
)


class Second:
    """Every step takes one."""

    def seconds(self, load: Load, paged: bool) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("system", "latency"), [(PAGED, (2 / 2 + 4 / 4) / 2), (FASTER_TRANSFORMER, (4 / 2 + 4 / 4) / 2)]
)
def test_a_whole_batch_answers_at_its_end(system, latency) -> None:
    outcome = simulate(CONFIG, system, [Arrival(0, 10, 2), Arrival(0, 10, 4)], Second())
    assert outcome.latency == latency
    assert outcome.tokens_s == 6 / 4


def test_the_clock_waits_for_arrivals_and_counts_queueing() -> None:
    # The second comes in the middle of the first's third step, so it starts at 3.
    outcome = simulate(CONFIG, PAGED, [Arrival(0, 10, 5), Arrival(2.5, 10, 2)], Second())
    assert outcome.latency == pytest.approx((5 / 5 + (5 - 2.5) / 2) / 2)
    late = simulate(CONFIG, PAGED, [Arrival(100, 10, 5)], Second())
    assert late.latency == 1.0


def test_roofline_by_hand() -> None:
    weights = 26e9 / 1.555e12
    assert OPT_13B_A100.seconds(Load(1, 1, 0), False) == pytest.approx(weights / 0.6)
    # 12 decodes that read 12,000 tokens of 819,200 bytes.
    read = 12_000 * 819_200 / 1.555e12
    assert OPT_13B_A100.seconds(Load(12, 12, 12_000), True) == pytest.approx(
        (weights + 1.23 * read) / 0.6
    )
    # A prompt of 1,000 tokens: 26 GFLOP a token, and 500,500 pairs.
    work = (26e9 * 1000 + 500_500 * 4 * 40 * 5120) / 312e12
    prompt = Load(1, 1000, 0, ((0, 1000),))
    assert OPT_13B_A100.seconds(prompt, False) == pytest.approx(work / 0.6)


def test_a_fit_finds_what_made_the_steps() -> None:
    table = BucketTable.build(32, 64)
    constants = {Bucket(1, 1): 0.01, Bucket(32, 32): 0.05, Bucket(64, 32): 0.2}
    real = Measured(table, constants, 1e-5, 1e-6)
    loads = [Load(1, 1, n) for n in (10, 100)] + [Load(20, 20, n) for n in (70, 700)]
    loads += [Load(2, n + 1, 5, ((0, n),)) for n in (10, 60)]
    steps = [(load, real.seconds(load, True)) for load in loads]
    found = Measured.fit(table, steps)
    assert found.per_context == pytest.approx(1e-5)
    assert found.per_pair == pytest.approx(1e-6)
    assert found.constants[Bucket(1, 1)] == pytest.approx(0.01)
    assert found.constants[Bucket(16, 16)] == pytest.approx(0.05)  # unused: as the next larger
    assert found.error(steps) == pytest.approx((0.0, 0.0), abs=1e-9)


def test_rate_at_a_latency_is_interpolated() -> None:
    points = [
        Point(rate, Outcome(latency, 0.0, Usage(), 0.0, 0))
        for rate, latency in ((1.0, 0.1), (2.0, 0.3), (3.0, 0.7))
    ]
    assert rate_at(points, 0.4) == pytest.approx(2.25)
    assert math.isnan(rate_at(points, 0.8))
