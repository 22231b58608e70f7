"""Histograms, gauges and counters in prometheus_client's form."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.utils import floatToGoString

# Metrics that vLLM has too are under a prefix from the settings, by default vLLM's; all others are
# under this one.
JAXSERVE_PREFIX = "jaxserve:"


class Histogram:
    """Counts values by bucket. Args: bounds: each bucket's upper bound, inclusive, in order."""

    def __init__(self, name: str, help_text: str, bounds: Sequence[float]) -> None:
        self._name, self._help, self._bounds = name, help_text, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def family(self, labels: Mapping[str, str], name: str | None = None) -> HistogramMetricFamily:
        """The histogram for Prometheus; under another name if one is given."""
        ends = [*map(floatToGoString, self._bounds), "+Inf"]
        family = HistogramMetricFamily(name or self._name, self._help, labels=list(labels))
        buckets = list(zip(ends, accumulate(self._counts), strict=True))
        family.add_metric(list(labels.values()), buckets, self._sum)
        return family


def gauge(name: str, help_text: str, value: float, labels: Mapping[str, str]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help_text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def counter(
    name: str, help_text: str, value: float, labels: Mapping[str, str]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, help_text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def one_two_five(most: float) -> list[float]:
    """1, 2, 5, 10, 20, 50, ... up to `most`."""
    series = (mantissa * 10**power for power in range(10) for mantissa in (1, 2, 5))
    return [bound for bound in series if bound <= most]
