"""Sends one request to an OpenAI-compatible server, and takes the times of its answer."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from jaxserve.bench.event_reader import EventReader
from jaxserve.errors import ConfigError


@dataclass(slots=True)
class Outcome:
    """The result of one request.

    Args:
        ttft_s: from sending it to the first piece of the answer.
        itls_s: from each piece to the next.
        latency_s: from sending it to the last piece.
        prompt_tokens, cached_tokens: as the server reports them; None if it doesn't.
        output_tokens: as the server reports them; if it doesn't, the number of pieces.
        error: None, "http_429" (or another status), "timeout", "connection" or "stream" (an error
            in the stream, or an early end).
        detail: the error's message.
    """

    ttft_s: float = 0.0
    itls_s: list[float] = field(default_factory=list)
    latency_s: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    text: str = ""
    error: str | None = None
    detail: str = ""

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token after the first; None if there is just one."""
        if self.output_tokens < 2:
            return None
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1)


class _StreamError(Exception):
    """The stream ended badly."""


async def stream(http: aiohttp.ClientSession, path: str, body: Mapping[str, Any]) -> Outcome:
    """Sends a streaming request, and reads its answer to the end."""
    outcome = Outcome()
    try:
        began = time.perf_counter()
        async with http.post(path, json=body) as response:
            if response.status != 200:
                outcome.error = f"http_{response.status}"
                outcome.detail = (await response.text())[:500]
                return outcome
            await _read(response, began, outcome)
    except TimeoutError:
        outcome.error, outcome.detail = "timeout", "no complete answer within --request-timeout"
    except (_StreamError, aiohttp.ClientPayloadError) as error:
        outcome.error, outcome.detail = "stream", str(error)
    except (aiohttp.ClientError, OSError) as error:
        outcome.error, outcome.detail = "connection", str(error)
    return outcome


async def _read(response: aiohttp.ClientResponse, began: float, outcome: Outcome) -> None:
    reader, pieces, finished = EventReader(), [], False
    arrivals: list[float] = []
    last = began
    async for received in response.content.iter_any():
        now = time.perf_counter()
        for data in reader.feed(received):
            if data == b"[DONE]":
                continue
            chunk = _parse(data)
            _take_usage(chunk.get("usage"), outcome)
            for choice in chunk.get("choices") or ():
                last = now
                text, more = _piece(choice)
                if more:
                    pieces.append(text)
                    arrivals.append(now)
                finished = finished or choice.get("finish_reason") is not None
    if not finished:
        raise _StreamError("the stream ended without a finish_reason")
    first = arrivals[0] if arrivals else last
    outcome.ttft_s, outcome.latency_s = first - began, last - began
    outcome.itls_s = [after - before for before, after in itertools.pairwise(arrivals)]
    outcome.output_tokens = outcome.output_tokens or len(pieces)
    outcome.text = "".join(pieces)


def _parse(data: bytes) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError:
        raise _StreamError(f"not JSON: {data[:200]!r}") from None
    if not isinstance(chunk, dict) or "error" in chunk:
        raise _StreamError(f"{data[:500]!r}")
    return chunk


def _piece(choice: dict[str, Any]) -> tuple[str, bool]:
    """The text of a chunk, and whether the chunk holds a token: one that only names the role, or
    ends the choice, doesn't."""
    if "delta" not in choice:
        text = choice.get("text") or ""
        return text, bool(text)
    delta = choice["delta"]
    text = delta.get("content") or ""
    unseen = (delta.get(name) for name in ("reasoning", "reasoning_content", "tool_calls"))
    return text, bool(text) or any(unseen)


def _take_usage(usage: dict[str, Any] | None, outcome: Outcome) -> None:
    if usage is None:
        return
    outcome.prompt_tokens = usage.get("prompt_tokens")
    outcome.output_tokens = usage.get("completion_tokens") or 0
    outcome.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


async def first_model(http: aiohttp.ClientSession) -> str:
    """The first model in the server's list.

    Raises:
        ConfigError: it lists none, or doesn't answer.
    """
    try:
        async with asyncio.timeout(30), http.get("/v1/models", raise_for_status=True) as response:
            name: str = (await response.json())["data"][0]["id"]
            return name
    except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"the server doesn't list its models ({error!r}): check --base-url, or give --model"
        ) from None
