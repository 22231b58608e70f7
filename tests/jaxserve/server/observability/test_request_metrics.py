"""What a client's events count as."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from jaxserve.engine.frontend.request_observer import ChoiceTimes, RequestTimes
from jaxserve.sampling.params import SamplingParams
from jaxserve.server.observability.request_metrics import RequestMetrics


def test_tokens_that_arrive_together_with_the_first_are_counted_as_gaps() -> None:
    """A busy event loop may see several steps' tokens at once; four tokens have three gaps."""
    metrics = RequestMetrics(100, "vllm:", {})
    registry = CollectorRegistry()
    registry.register(metrics)
    times = RequestTimes(3, SamplingParams())
    times.choices[0] = ChoiceTimes(first=1.0, last=1.0, tokens=2)
    metrics.on_first_tokens(times, 0.25, 2)
    metrics.on_next_tokens(0.5, 2)

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"vllm:{name}")

    assert value("time_to_first_token_seconds_count") == 1
    assert value("inter_token_latency_seconds_count") == 3
    assert value("inter_token_latency_seconds_sum") == 0.5
    assert value("generation_tokens_total") == 4
