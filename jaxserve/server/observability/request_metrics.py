"""Metrics of requests, under vLLM's names and meanings, so that dashboards for vLLM work."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from jaxserve.engine.frontend.request_observer import (
    EndReason,
    EngineStats,
    RequestObserver,
    RequestTimes,
)
from jaxserve.server.observability.prometheus_families import (
    JAXSERVE_PREFIX,
    Histogram,
    counter,
    one_two_five,
)

# Bounds of the histograms' buckets; _S: in seconds.
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


class RequestMetrics(RequestObserver, Collector):
    """Metrics of the requests of one client, and of the engine's steps, from the client's events.

    Args:
        max_model_len: the upper end of histograms of tokens.
        prefix, labels: as in EngineMetrics.
    """

    def __init__(self, max_model_len: int, prefix: str, labels: Mapping[str, str]) -> None:
        self._prefix, self._labels = prefix, labels
        self._prompt_tokens = self._generation_tokens = 0
        self._ended: Counter[EndReason] = Counter()
        self._make_histograms(one_two_five(max_model_len))

    def _make_histograms(self, tokens: Sequence[float]) -> None:
        self._histograms: list[Histogram] = []

        def make(name: str, help_text: str, bounds: Sequence[float]) -> Histogram:
            self._histograms.append(Histogram(name, help_text, bounds))
            return self._histograms[-1]

        p = self._prefix
        self._first = make(
            f"{p}time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN_S
        )
        self._next = make(
            f"{p}inter_token_latency_seconds", "Between consecutive tokens of a choice.", TOKEN_S
        )
        self._mean = make(
            f"{p}request_time_per_output_token_seconds",
            "Mean time per token of a choice, without the first token.",
            TOKEN_S,
        )
        self._e2e = make(
            f"{p}e2e_request_latency_seconds", "From arrival to the last token.", REQUEST_S
        )
        self._queue = make(
            f"{p}request_queue_time_seconds", "From arrival to the first step.", REQUEST_S
        )
        self._inference = make(
            f"{p}request_inference_time_seconds",
            "From the first step to the last token.",
            REQUEST_S,
        )
        self._prefill = make(
            f"{p}request_prefill_time_seconds", "From the first step to the first token.", REQUEST_S
        )
        self._decode = make(
            f"{p}request_decode_time_seconds", "From the first token to the last.", REQUEST_S
        )
        self._prompt = make(f"{p}request_prompt_tokens", "Prompt tokens of each choice.", tokens)
        self._generation = make(
            f"{p}request_generation_tokens", "Output tokens of each choice.", tokens
        )
        self._longest = make(
            f"{p}request_max_num_generation_tokens",
            "Output tokens of each request's longest choice.",
            tokens,
        )
        self._params_max = make(
            f"{p}request_params_max_tokens", "max_tokens of each request.", tokens
        )
        self._params_n = make(f"{p}request_params_n", "n of each request.", CHOICES)
        self._step_tokens = make(f"{p}iteration_tokens_total", "Tokens of each step.", STEP_TOKENS)
        self._step_s = make(
            f"{JAXSERVE_PREFIX}step_duration_seconds", "Time of each step on the device.", STEP_S
        )

    # -- events of the client

    def on_stats(self, stats: EngineStats) -> None:
        if stats.step_s is not None:
            self._step_s.observe(stats.step_s)
            self._step_tokens.observe(stats.step_tokens)

    def on_first_tokens(self, times: RequestTimes, seconds: float, tokens: int) -> None:
        self._first.observe(seconds)
        # Tokens that came together with the first came no time after it. They are counted so that
        # a client whose event loop was busy counts as many gaps as one that was not.
        self._next.observe(0.0, tokens - 1)
        self._generation_tokens += tokens
        if len(times.choices) == 1:
            self._prompt_tokens += times.prompt_tokens

    def on_next_tokens(self, seconds: float, tokens: int) -> None:
        self._next.observe(seconds / tokens, tokens)
        self._generation_tokens += tokens

    def on_choice_end(self, times: RequestTimes, index: int, reason: EndReason) -> None:
        """Only finished choices are in the histograms: aborted ones would look fast."""
        self._ended[reason] += 1
        choice = times.choices.get(index)
        if reason not in ("stop", "length"):
            return
        self._e2e.observe(time.monotonic() - times.arrived)
        if choice is None:  # an embedding has no tokens
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

    # -- for Prometheus

    def collect(self) -> Iterator[Metric]:
        p, labels = self._prefix, self._labels
        yield counter(f"{p}prompt_tokens", "Prompt tokens.", self._prompt_tokens, labels)
        yield counter(f"{p}generation_tokens", "Output tokens.", self._generation_tokens, labels)
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
        # The older name of the same metric, which many dashboards use.
        yield self._next.family(self._labels, f"{self._prefix}time_per_output_token_seconds")
