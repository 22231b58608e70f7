"""Metrics of HTTP requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from jaxserve.server.observability.prometheus_families import Histogram

HTTP_S = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class HttpMetrics(Collector):
    """HTTP requests by route, under the names of vLLM's server."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._seconds: dict[tuple[str, str], Histogram] = {}

    def observe(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Counts a response. Args: handler: the route's pattern."""
        self._requests[handler, method, f"{status // 100}xx"] += 1
        if (histogram := self._seconds.get((handler, method))) is None:
            histogram = Histogram(
                "http_request_duration_seconds",
                "From the request to the last byte of the response.",
                HTTP_S,
            )
            self._seconds[handler, method] = histogram
        histogram.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "http_requests", "Responses.", labels=["handler", "method", "status"]
        )
        for key, count in self._requests.items():
            requests.add_metric(key, count)
        yield requests
        families = [
            histogram.family({"handler": handler, "method": method})
            for (handler, method), histogram in self._seconds.items()
        ]
        if families:
            families[0].samples = [sample for family in families for sample in family.samples]
            yield families[0]
