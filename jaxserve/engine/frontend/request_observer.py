"""RequestObserver: the interface for whatever follows requests, such as the server's metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

from jaxserve.engine.core.protocol import EngineStats, SpeculationStats
from jaxserve.outputs import FinishReason
from jaxserve.sampling.params import SamplingParams

__all__ = [
    "ChoiceTimes",
    "EndReason",
    "EngineStats",
    "RequestObserver",
    "RequestTimes",
    "SpeculationStats",
]

EndReason = FinishReason | Literal["error"]


@dataclass(slots=True)
class ChoiceTimes:
    """Output tokens of one choice, and when the first and the last came (time.monotonic())."""

    first: float
    last: float
    tokens: int


@dataclass(slots=True)
class RequestTimes:
    """One request as the client sees it.

    Args:
        request_id: the caller's, not unique.
        arrived: when it was sent to the engine, by time.monotonic().
        queue_s: seconds until it was first admitted; None before that.
        choices: those that have a token.
        ended: how many choices have ended.
    """

    prompt_tokens: int
    params: SamplingParams
    request_id: str | None = None
    arrived: float = field(default_factory=time.monotonic)
    queue_s: float | None = None
    choices: dict[int, ChoiceTimes] = field(default_factory=dict)
    ended: int = 0


class RequestObserver:
    """Does nothing. Methods are called in the client's event loop, so they must be quick."""

    def on_stats(self, stats: EngineStats) -> None:
        """The engine has reported its figures, after a turn of its loop or during a long one."""

    def on_first_tokens(self, times: RequestTimes, seconds: float, tokens: int) -> None:
        """A choice's first tokens came, `seconds` after the request."""

    def on_next_tokens(self, seconds: float, tokens: int) -> None:
        """A choice's next tokens came, `seconds` after those before."""

    def on_choice_end(self, times: RequestTimes, index: int, reason: EndReason) -> None:
        """A choice ended."""
