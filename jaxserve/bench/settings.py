"""Settings of the benchmarks; each field's metadata has the help text of its flag."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxserve.errors import ConfigError

GOODPUT_METRICS = ("ttft", "tpot", "e2el")


def _setting(default: Any, text: str, **options: Any) -> Any:
    return field(default=default, metadata={"help": text}, **options)


@dataclass(frozen=True, slots=True)
class DatasetConfig:
    """The prompts. The same settings give the same prompts on any machine."""

    dataset: Literal[
        "random",
        "sharegpt-like",
        "alpaca-like",
        "sharegpt-file",
        "shared-prefix",
        "multi-turn",
    ] = _setting(
        "random",
        "random, sharegpt-like or alpaca-like (with the lengths of these datasets), sharegpt-file, "
        "shared-prefix or multi-turn",
    )
    dataset_path: str | None = _setting(None, "file of the dataset sharegpt-file (JSON)")
    num_prompts: int = _setting(100, "number of requests; with multi-turn, of conversations")
    input_tokens: int = _setting(128, "tokens of a prompt, or of each message of a conversation")
    output_tokens: int = _setting(128, "tokens of an answer")
    range_ratio: float = _setting(
        0.0, "draw each of these lengths from length x (1 - ratio) to length x (1 + ratio)"
    )
    hit_rate: float = _setting(
        0.5, "share of the prompt tokens that a prefix cache can find, with shared-prefix"
    )
    prefix_groups: int = _setting(1, "number of different prefixes, with shared-prefix")
    turns: int = _setting(4, "questions in each conversation, with multi-turn")
    seed: int = _setting(0, "seed of lengths, texts, arrivals and sampling")

    def __post_init__(self) -> None:
        for name in ("num_prompts", "input_tokens", "output_tokens", "prefix_groups", "turns"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; it was {getattr(self, name)}")
        for name in ("range_ratio", "hit_rate"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"{name} must be in [0, 1); it was {getattr(self, name)}")
        if (self.dataset == "sharegpt-file") != (self.dataset_path is not None):
            raise ConfigError("dataset sharegpt-file and dataset_path need each other")
        if self.dataset == "shared-prefix" and self.prefix_groups >= self.num_prompts:
            raise ConfigError(
                "prefix_groups must be less than num_prompts, or no prefix comes twice; "
                f"they were {self.prefix_groups} and {self.num_prompts}"
            )


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """The load on a server."""

    base_url: str = _setting("http://127.0.0.1:8000", "URL of the server, without /v1")
    model: str | None = _setting(
        None, "model name in requests (default: the first in the server's list)"
    )
    endpoint: Literal["completions", "chat"] = _setting(
        "completions", "API to use: completions or chat"
    )
    request_rate: float = _setting(math.inf, "new requests a second; inf sends them all at once")
    burstiness: float = _setting(
        1.0, "burstiness of arrivals: 1 is a Poisson process, less is burstier, more is more even"
    )
    max_concurrency: int | None = _setting(None, "most requests in flight (default: no limit)")
    ramp_up: float = _setting(
        0.0, "seconds in which the rate, or without one the concurrency, grows to its full value"
    )
    warmup_requests: int = _setting(0, "random requests that are sent before and not counted")
    ignore_eos: bool = _setting(
        True, "generate output_tokens tokens, even after an end-of-sequence token"
    )
    temperature: float = _setting(0.0, "sampling temperature; 0 is greedy")
    request_timeout: float = _setting(600.0, "seconds after which a request counts as failed")
    goodput: tuple[str, ...] = _setting(
        (), "limits in ms that a good request meets, such as ttft:500 tpot:50 e2el:10000"
    )
    api_key: str | None = _setting(
        None, "sent as a bearer token (default: $OPENAI_API_KEY)", repr=False
    )

    def __post_init__(self) -> None:
        for name in ("request_rate", "burstiness", "request_timeout"):
            if not getattr(self, name) > 0.0:
                raise ConfigError(f"{name} must be more than 0; it was {getattr(self, name)}")
        for name in ("ramp_up", "warmup_requests", "temperature"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be 0 or more; it was {getattr(self, name)}")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigError(f"max_concurrency must be at least 1; it was {self.max_concurrency}")
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base_url must begin with http:// or https://: {self.base_url!r}")
        self.limits_ms()

    def limits_ms(self) -> dict[str, float]:
        """The limits of a good request, by metric."""
        limits = {}
        for item in self.goodput:
            name, _, value = item.partition(":")
            try:
                limits[name] = float(value)
            except ValueError:
                limits[name] = math.nan
            if name not in GOODPUT_METRICS or not limits[name] >= 0.0:
                raise ConfigError(
                    f"goodput takes {', '.join(GOODPUT_METRICS)} with a limit in ms, such as "
                    f"ttft:500; it was {item!r}"
                )
        return limits


@dataclass(frozen=True, slots=True)
class LatencyConfig:
    """A batch that is run several times."""

    batch_size: int = _setting(8, "prompts that run together")
    input_tokens: int = _setting(32, "tokens of each prompt")
    output_tokens: int = _setting(128, "tokens of each answer")
    warmup_iters: int = _setting(1, "batches that are run before and not counted")
    iters: int = _setting(5, "batches that are counted")
    seed: int = _setting(0, "seed of the texts")

    def __post_init__(self) -> None:
        for name in ("batch_size", "input_tokens", "output_tokens", "iters"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; it was {getattr(self, name)}")
        if self.warmup_iters < 0:
            raise ConfigError(f"warmup_iters must be at least 0; it was {self.warmup_iters}")


@dataclass(frozen=True, slots=True)
class StartupConfig:
    """How often a server is started."""

    warm_rounds: int = _setting(3, "starts after the first, with the programs that it compiled")

    def __post_init__(self) -> None:
        if self.warm_rounds < 1:
            raise ConfigError(f"warm_rounds must be at least 1; it was {self.warm_rounds}")
