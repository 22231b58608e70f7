"""Metrics of the engine, under vLLM's names and meanings, so that dashboards for vLLM work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from jaxserve.server.observability.prometheus_families import JAXSERVE_PREFIX, counter, gauge

if TYPE_CHECKING:
    from jaxserve.engine.frontend.client import EngineClient
    from jaxserve.engine.frontend.request_observer import SpeculationStats


class EngineMetrics(Collector):
    """Figures from the engine's last statistics, which every API worker receives alike.

    Args:
        client: returns the current client; a restarted engine has a new one.
        prefix: of the names of metrics that vLLM has too.
        labels: of every metric.
    """

    def __init__(
        self, client: Callable[[], EngineClient], prefix: str, labels: Mapping[str, str]
    ) -> None:
        self._client, self._prefix, self._labels = client, prefix, labels

    def collect(self) -> Iterator[Metric]:
        labels, prefix = self._labels, self._prefix
        config, stats = self._client().config, self._client().stats
        scheduler = stats.scheduler
        for name, help_text, value in (
            ("num_requests_running", "Choices that are running.", scheduler.running),
            ("num_requests_waiting", "Choices that are waiting to run.", scheduler.waiting),
            (
                "kv_cache_usage_perc",
                "Share of the KV cache in use; 1 is full.",
                scheduler.blocks_used / scheduler.blocks_total,
            ),
        ):
            yield gauge(prefix + name, help_text, value, labels)
        idle_help = "Seconds in which the device waited for the host though there was work."
        for name, help_text, value in (
            (
                f"{prefix}prefix_cache_queries",
                "Tokens looked up in the prefix cache.",
                scheduler.prefix_queries,
            ),
            (
                f"{prefix}prefix_cache_hits",
                "Tokens found in the prefix cache.",
                scheduler.prefix_hits,
            ),
            (f"{prefix}num_preemptions", "Preemptions of running choices.", scheduler.preemptions),
            (
                f"{JAXSERVE_PREFIX}recomputed_tokens",
                "Tokens computed again after a preemption.",
                scheduler.recomputed_tokens,
            ),
            (
                f"{JAXSERVE_PREFIX}prefix_cache_evictions",
                "Cached blocks whose content was forgotten to make room.",
                scheduler.evictions,
            ),
            (
                f"{JAXSERVE_PREFIX}block_copies",
                "Shared blocks copied before a write (copy-on-write).",
                scheduler.copies,
            ),
            (
                f"{JAXSERVE_PREFIX}compiles_after_ready",
                "Compilations after start-up, which should be 0.",
                stats.compiles,
            ),
            (f"{JAXSERVE_PREFIX}device_idle_seconds", idle_help, stats.idle_s),
        ):
            yield counter(name, help_text, value, labels)
        if stats.speculation is not None:
            yield from self._speculation(stats.speculation)
        info = {
            "block_size": str(config.block_size),
            "num_gpu_blocks": str(scheduler.blocks_total),
            "enable_prefix_caching": str(config.enable_prefix_caching),
        }
        yield gauge(
            f"{prefix}cache_config_info", "Settings of the KV cache.", 1, {**labels, **info}
        )

    def _speculation(self, stats: SpeculationStats) -> Iterator[Metric]:
        labels, prefix = self._labels, f"{self._prefix}spec_decode_num_"
        for name, help_text, value in (
            ("drafts", "Times that guesses of a choice were verified.", stats.drafts),
            ("draft_tokens", "Guesses that were verified.", stats.draft_tokens),
            ("accepted_tokens", "Guesses that were taken.", stats.accepted_tokens),
        ):
            yield counter(prefix + name, help_text, value, labels)
        by_position = CounterMetricFamily(
            f"{prefix}accepted_tokens_per_pos",
            "Guesses that were taken, by their position in the draft.",
            labels=[*labels, "position"],
        )
        for position, count in enumerate(stats.accepted_per_position):
            by_position.add_metric([*labels.values(), str(position)], count)
        yield by_position
