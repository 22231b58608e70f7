"""Requests to a server that sends prepared bytes, piece by piece."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from jaxserve.bench.event_reader import EventReader
from jaxserve.bench.timed_request import Outcome, first_model, stream
from jaxserve.errors import ConfigError

Answer = Callable[[web.Request], web.Response] | list[bytes | float]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a server that sends these bytes, sleeping where there is a number."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if callable(answer):
            return answer(request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for part in answer:
            if isinstance(part, float):
                await asyncio.sleep(part)
            else:
                await response.write(part)
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession(f"http://{host}:{port}") as http:
            yield http
    finally:
        await runner.cleanup()


async def outcome_of(answer: Answer) -> Outcome:
    async with serving(answer) as http:
        return await stream(http, "/v1/completions", {})


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(reason: str | None = None, **fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": reason}])


def text(piece: str, reason: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "text": piece, "finish_reason": reason}])


USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 4},
}


def test_events_come_in_pieces_of_any_size() -> None:
    sent = b': ping\r\n\r\ndata: {"a": 1}\r\n\r\nid: 3\ndata:one\ndata: two\n\n\ndata: [DONE]\n\n'
    for size in (1, 2, 7, len(sent)):
        reader = EventReader()
        events = [e for i in range(0, len(sent), size) for e in reader.feed(sent[i : i + size])]
        assert events == [b'{"a": 1}', b"one\ntwo", b"[DONE]"]


async def test_a_chunk_with_a_role_only_is_no_token_and_usage_is_read() -> None:
    outcome = await outcome_of(
        [
            delta(role="assistant", content=""),
            *(0.1, delta(reasoning_content="hm"), 0.01, delta(content="a"), delta(content="b")),
            delta("length"),
            *(event(choices=[], usage=USAGE), b"data: [DONE]\n\n"),
        ]
    )
    assert outcome.error is None
    assert outcome.text == "ab"
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.cached_tokens) == (7, 5, 4)
    assert outcome.ttft_s >= 0.09  # it slept so long after the role
    assert len(outcome.itls_s) == 2
    assert outcome.latency_s >= outcome.ttft_s + sum(outcome.itls_s)
    assert outcome.tpot_s == (outcome.latency_s - outcome.ttft_s) / 4


async def test_without_usage_the_pieces_are_the_tokens() -> None:
    outcome = await outcome_of([text("a"), text("b"), text("c", "stop")])
    assert (outcome.output_tokens, outcome.prompt_tokens) == (3, None)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda _: web.Response(status=429, text="full"), "http_429"),
        ([text("a"), event(error={"message": "no"})], "stream"),
        ([text("a"), b"data: [DONE]\n\n"], "stream"),  # cut: no finish_reason
        ([b"data: {broken\n\n"], "stream"),
    ],
)
async def test_kinds_of_failures(answer: Answer, error: str) -> None:
    outcome = await outcome_of(answer)
    assert outcome.error == error
    assert outcome.detail


async def test_no_server_and_a_late_answer() -> None:
    async with serving([0.5]) as http:
        closed = str(http._base_url)
        hurried = aiohttp.ClientSession(closed, timeout=aiohttp.ClientTimeout(total=0.1))
        async with hurried:
            assert (await stream(hurried, "/v1/completions", {})).error == "timeout"
    async with aiohttp.ClientSession(closed) as http:
        assert (await stream(http, "/v1/completions", {})).error == "connection"
        with pytest.raises(ConfigError, match="check --base-url"):
            await first_model(http)
