"""Request: what was asked. Sequence: one running sample of it, with its tokens and its blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(slots=True, eq=False)
class Request:
    """One request as the scheduler sees it.

    Args:
        max_tokens: most output tokens.
        stop_token_ids: ids that end it, EOS included.
        min_tokens: ends by stop ids only from this many output tokens on.
        priority: lower runs first (policy `priority` only).
        arrival_time: seconds; breaks ties among equal priorities.
        cache_salt: only requests with the same salt share cached blocks.
        payload: opaque to the scheduler; the runner's sampling settings.
    """

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    priority: int = 0
    arrival_time: float = 0.0
    cache_salt: str | None = None
    payload: Any = None


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of a request. The scheduler alone writes it; the engine reads it."""

    request: Request
    index: int = 0
    slot: int = -1
    output_token_ids: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
