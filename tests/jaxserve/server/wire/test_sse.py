"""The framing of server-sent events, over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from jaxserve.errors import (
    EngineDeadError,
    EngineError,
    InvalidRequestError,
    JaxserveError,
    OverloadedError,
)
from jaxserve.server.middleware.errors import error_middleware
from jaxserve.server.wire.sse import DONE, EventStream, TextEvent, event, named_event


class Note(msgspec.Struct):
    text: str


Sender = Callable[[EventStream], Awaitable[None]]


async def fetch(sender: Sender, **settings: Any) -> tuple[int, Any, bytes]:
    """Status, headers and body of a response that `sender` writes."""

    async def handler(request: web.Request) -> web.StreamResponse:
        async with EventStream(request, **settings) as events:
            await sender(events)
        return events.response

    app = web.Application(middlewares=[error_middleware])
    app.add_routes([web.get("/", handler)])
    async with TestClient(TestServer(app)) as client:
        response = await client.get("/")
        return response.status, response.headers, await response.read()


async def test_events_and_done() -> None:
    async def sender(events: EventStream) -> None:
        await events.write(event(Note("a\nb")) + event(Note("ü")))
        await events.write(b"")
        await events.end(DONE)

    status, headers, body = await fetch(sender)
    assert status == 200
    assert headers["Content-Type"].startswith("text/event-stream")
    assert headers["Cache-Control"] == "no-cache"
    first, second, done, rest = body.split(b"\n\n")
    assert msgspec.json.decode(first.removeprefix(b"data: ")) == {"text": "a\nb"}
    assert msgspec.json.decode(second.removeprefix(b"data: ")) == {"text": "ü"}
    assert (done, rest) == (b"data: [DONE]", b"")


async def test_a_stream_without_news_has_comments() -> None:
    async def sender(events: EventStream) -> None:
        before = events.written
        while events.written == before:  # a comment, before the first event too
            await asyncio.sleep(0.01)
        await events.write(event(Note("a")))
        await events.write(b"")
        before = events.written
        while events.written == before:
            await asyncio.sleep(0.01)
        await events.end(DONE)

    _, _, body = await fetch(sender, keepalive_s=0.05)
    *_, done, rest = parts = body.split(b"\n\n")
    assert parts[0].startswith(b":")
    at = parts.index(b'data: {"text":"a"}')
    assert at > 0
    assert parts[at + 1].startswith(b":")
    assert {part[:1] for part in parts[:at]} == {b":"}
    assert (done, rest) == (b"data: [DONE]", b"")
    _, _, body = await fetch(lambda events: events.end(DONE), keepalive_s=0)
    assert body == DONE


async def test_an_error_after_a_comment_is_an_event() -> None:
    async def sender(events: EventStream) -> None:
        before = events.written
        while events.written == before:
            await asyncio.sleep(0.01)
        raise OverloadedError("full")

    status, _, body = await fetch(sender, keepalive_s=0.05)
    assert status == 200
    assert b'"message":"full"' in body


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequestError("too long", "prompt"), 400),
        (OverloadedError("full"), 429),
        (EngineDeadError("gone"), 503),
        (EngineError("NaN logits"), 500),
        (ZeroDivisionError("oops"), 500),
    ],
)
async def test_an_error_before_the_first_event_has_a_status(error: Exception, status: int) -> None:
    async def sender(events: EventStream) -> None:
        raise error

    answered, headers, body = await fetch(sender)
    assert answered == status
    assert ("Retry-After" in headers) == (status in (429, 503))
    message = msgspec.json.decode(body)["error"]["message"]
    assert (str(error) in message) == isinstance(error, JaxserveError)


async def test_an_error_in_mid_stream_is_the_last_event() -> None:
    async def sender(events: EventStream) -> None:
        await events.write(event(Note("a")))
        raise EngineError("NaN logits")

    status, _, body = await fetch(sender)
    assert status == 200
    first, second, rest = body.split(b"\n\n")
    assert first == b'data: {"text":"a"}'
    error = msgspec.json.decode(second.removeprefix(b"data: "))["error"]
    assert error["type"] == "server_error"
    assert "NaN logits" in error["message"]
    assert rest == b""


class Letter(msgspec.Struct):
    to: str
    text: str
    end: str | None = None


def test_a_text_event_is_the_message_with_its_text() -> None:
    to = '"text":""'
    make = TextEvent(Letter(to, ""), "text")
    for text in ("a", 'say "hi"\n', "ü\u2028😀", ""):
        assert make(text) == event(Letter(to, text))


def test_a_named_event() -> None:
    assert named_event("note", Note("a")) == b'event: note\ndata: {"text":"a"}\n\n'
