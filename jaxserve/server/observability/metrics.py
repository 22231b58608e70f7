"""GET /metrics: Prometheus figures under vLLM's names and meanings, so that its dashboards work.

What vLLM has no name for is under `jaxserve:`.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from jaxserve.engine.core.protocol import EngineStats
from jaxserve.engine.frontend.request_observer import EndReason, RequestObserver, RequestTimes

if TYPE_CHECKING:
    from jaxserve.engine.frontend.client import EngineClient

OWN = "jaxserve:"
FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHOICES = (1, 2, 5, 10, 20)
HTTP_S = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Histogram:
    """Counts values by bucket."""

    def __init__(self, name: str, help_text: str, bounds: Sequence[float]) -> None:
        self._name, self._help, self._bounds = name, help_text, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def family(self, labels: Mapping[str, str], name: str | None = None) -> HistogramMetricFamily:
        """As Prometheus reads it; under another name if one is given."""
        ends = [*map(floatToGoString, self._bounds), "+Inf"]
        family = HistogramMetricFamily(name or self._name, self._help, labels=list(labels))
        buckets = list(zip(ends, accumulate(self._counts), strict=True))
        family.add_metric(list(labels.values()), buckets, self._sum)
        return family


class EngineReadings(Collector):
    """What the engine says of itself, the same to each of its clients.

    Args:
        client: gives the client at the time.
        prefix: of the names that vLLM has too.
        labels: of each figure.
    """

    def __init__(
        self, client: Callable[[], EngineClient], prefix: str, labels: Mapping[str, str]
    ) -> None:
        self._client, self._prefix, self._labels = client, prefix, labels

    def collect(self) -> Iterator[Metric]:
        labels, own = self._labels, self._prefix
        config, stats = self._client().config, self._client().stats
        memory = stats.scheduler
        for gauge, says, value in (
            ("num_requests_running", "Choices that run.", memory.running),
            ("num_requests_waiting", "Choices that wait.", memory.waiting),
            (
                "kv_cache_usage_perc",
                "1 is a full KV cache.",
                memory.blocks_used / memory.blocks_total,
            ),
        ):
            yield _gauge(own + gauge, says, value, labels)
        idle = "Seconds in which the device waited for the host though there was work."
        for counter, says, value in (
            (f"{own}prefix_cache_queries", "Tokens looked up.", memory.prefix_queries),
            (f"{own}prefix_cache_hits", "Tokens found.", memory.prefix_hits),
            (f"{own}num_preemptions", "Choices that had to wait anew.", memory.preemptions),
            (f"{OWN}recomputed_tokens", "After preemptions.", memory.recomputed_tokens),
            (f"{OWN}compiles_after_ready", "Faults, if any.", stats.compiles),
            (f"{OWN}device_idle_seconds", idle, stats.idle_s),
        ):
            yield _count(counter, says, value, labels)
        info = {
            "block_size": str(config.block_size),
            "num_gpu_blocks": str(memory.blocks_total),
            "enable_prefix_caching": str(config.enable_prefix_caching),
        }
        yield _gauge(f"{own}cache_config_info", "The cache.", 1, {**labels, **info})


class EngineMetrics(RequestObserver, Collector):
    """The requests of one client, and the steps that it is told of.

    Args: prefix, labels: as EngineReadings'.
    """

    def __init__(self, client: EngineClient, prefix: str, labels: Mapping[str, str]) -> None:
        self._prefix, self._labels = prefix, labels
        self._prompt_tokens = self._generation_tokens = 0
        self._ended: Counter[EndReason] = Counter()
        self._make_histograms(one_two_five(client.max_model_len))

    def _make_histograms(self, tokens: Sequence[float]) -> None:
        self._histograms: list[Histogram] = []

        def make(name: str, help_text: str, bounds: Sequence[float]) -> Histogram:
            self._histograms.append(Histogram(name, help_text, bounds))
            return self._histograms[-1]

        p = self._prefix
        self._first = make(
            f"{p}time_to_first_token_seconds", "From request to first token.", FIRST_TOKEN_S
        )
        self._next = make(f"{p}inter_token_latency_seconds", "Between a choice's tokens.", TOKEN_S)
        self._mean = make(
            f"{p}request_time_per_output_token_seconds",
            "Mean of a choice, less the first.",
            TOKEN_S,
        )
        self._e2e = make(f"{p}e2e_request_latency_seconds", "From request to end.", REQUEST_S)
        self._queue = make(f"{p}request_queue_time_seconds", "Waiting to be admitted.", REQUEST_S)
        self._inference = make(
            f"{p}request_inference_time_seconds", "From admission to last token.", REQUEST_S
        )
        self._prefill = make(
            f"{p}request_prefill_time_seconds", "From admission to first token.", REQUEST_S
        )
        self._decode = make(
            f"{p}request_decode_time_seconds", "From first token to last.", REQUEST_S
        )
        self._prompt = make(f"{p}request_prompt_tokens", "Prompt tokens of a choice.", tokens)
        self._generation = make(
            f"{p}request_generation_tokens", "Output tokens of a choice.", tokens
        )
        self._longest = make(
            f"{p}request_max_num_generation_tokens", "Output tokens of the longest choice.", tokens
        )
        self._params_max = make(f"{p}request_params_max_tokens", "max_tokens of a request.", tokens)
        self._params_n = make(f"{p}request_params_n", "n of a request.", CHOICES)
        self._step_tokens = make(f"{p}iteration_tokens_total", "Tokens of a step.", STEP_TOKENS)
        self._step_s = make(f"{OWN}step_duration_seconds", "Of a step on the device.", STEP_S)

    # -- what happens

    def on_turn(self, stats: EngineStats) -> None:
        if stats.step_s is not None:
            self._step_s.observe(stats.step_s)
            self._step_tokens.observe(stats.step_tokens)

    def on_first(self, times: RequestTimes, seconds: float, tokens: int) -> None:
        self._first.observe(seconds)
        self._generation_tokens += tokens
        if len(times.choices) == 1:
            self._prompt_tokens += times.prompt_tokens

    def on_next(self, seconds: float, tokens: int) -> None:
        self._next.observe(seconds / tokens, tokens)
        self._generation_tokens += tokens

    def on_end(self, times: RequestTimes, index: int, reason: EndReason) -> None:
        """The histograms take what ended well: a time cut short would read as a fast one."""
        self._ended[reason] += 1
        choice = times.choices.get(index)
        if reason not in ("stop", "length"):
            return
        self._e2e.observe(time.monotonic() - times.arrived)
        if choice is None:  # an embedding
            self._prompt_tokens += times.prompt_tokens
            return
        queue_s = times.queue_s or 0.0
        admitted = times.arrived + queue_s
        self._queue.observe(queue_s)
        self._prefill.observe(choice.first - admitted)
        self._inference.observe(choice.last - admitted)
        self._decode.observe(choice.last - choice.first)
        if choice.tokens > 1:
            self._mean.observe((choice.last - choice.first) / (choice.tokens - 1))
        self._prompt.observe(times.prompt_tokens)
        self._generation.observe(choice.tokens)
        if times.ended == times.params.n:
            self._longest.observe(max(c.tokens for c in times.choices.values()))
            self._params_n.observe(times.params.n)
            if times.params.max_tokens is not None:
                self._params_max.observe(times.params.max_tokens)

    # -- what Prometheus reads

    def collect(self) -> Iterator[Metric]:
        p, labels = self._prefix, self._labels
        yield _count(f"{p}prompt_tokens", "Prompt tokens.", self._prompt_tokens, labels)
        yield _count(f"{p}generation_tokens", "Output tokens.", self._generation_tokens, labels)
        ended = CounterMetricFamily(
            f"{self._prefix}request_success",
            "Choices that ended.",
            labels=[*self._labels, "finished_reason"],
        )
        for reason in ("stop", "length", "abort", "error"):
            ended.add_metric([*self._labels.values(), reason], self._ended[reason])
        yield ended
        for histogram in self._histograms:
            yield histogram.family(self._labels)
        # The older name, which many dashboards still ask for.
        yield self._next.family(self._labels, f"{self._prefix}time_per_output_token_seconds")


class HttpMetrics(Collector):
    """What every HTTP server shows, under the names that vLLM's has."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._seconds: dict[tuple[str, str], Histogram] = {}

    def observe(self, handler: str, method: str, status: int, seconds: float) -> None:
        """A request was answered; `handler` is its route, so that labels stay few."""
        self._requests[handler, method, f"{status // 100}xx"] += 1
        if (timed := self._seconds.get((handler, method))) is None:
            timed = Histogram("http_request_duration_seconds", "To the answer's last byte.", HTTP_S)
            self._seconds[handler, method] = timed
        timed.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "http_requests", "Requests answered.", labels=["handler", "method", "status"]
        )
        for key, count in self._requests.items():
            requests.add_metric(key, count)
        yield requests
        families = [
            timed.family({"handler": handler, "method": method})
            for (handler, method), timed in self._seconds.items()
        ]
        if families:
            families[0].samples = [sample for family in families for sample in family.samples]
            yield families[0]


def _gauge(name: str, help_text: str, value: float, labels: Mapping[str, str]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help_text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _count(
    name: str, help_text: str, value: float, labels: Mapping[str, str]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, help_text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def one_two_five(most: float) -> list[float]:
    """1, 2, 5, 10, 20, 50, ... up to `most`."""
    series = (mantissa * 10**power for power in range(10) for mantissa in (1, 2, 5))
    return [bound for bound in series if bound <= most]
