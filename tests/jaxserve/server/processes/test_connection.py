"""Connections: large heads, invalid HTTP, clients that close their sending half or leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from jaxserve.server.processes import connection

SECONDS = 60  # only against hanging
BODY = b'{"prompt": "x", "max_tokens": 4, "stream": false}'


def request_of(body: bytes, *headers: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    lines = (
        b"POST /v1/completions " + version,
        b"Host: x",
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(body),
        *headers,
    )
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def exchange(address: tuple[str, int], data: bytes, half_close: bool = False) -> bytes:
    """All bytes that come back."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(data)
    if half_close:
        writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), SECONDS)
    finally:
        writer.close()


def error_in(response: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = response.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]


class Slow:
    """A handler that waits until it is released, and notes whether it was cancelled."""

    def __init__(self) -> None:
        self.started, self.released, self.cancelled = (asyncio.Event() for _ in range(3))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        self.started.set()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return web.Response(text="done")


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
async def address(slow: Slow) -> AsyncIterator[tuple[str, int]]:
    app = web.Application()
    app.router.add_route("*", "/v1/completions", slow.handle)
    runner = connection.ConnectionRunner(app, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][:2]
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "invalid_http"),
        (b"GET / HTTP/1.1\r\nHost x\r\n\r\n", 400, "invalid_http"),
        (b"GET / HTTP/9.1\r\nHost: x\r\n\r\n", 400, "invalid_http"),
        (b"GET / HTTP/1.1\r\nContent-Length: a\r\n\r\n", 400, "invalid_http"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 431, "headers_too_large"),
    ],
)
async def test_invalid_http_is_refused_in_the_form_of_all_errors(
    address: tuple[str, int], data: bytes, status: int, code: str
) -> None:
    response = await exchange(address, data)
    got, error = error_in(response)
    assert (got, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert len(response) < 1000


async def test_a_client_that_closes_its_sending_half_is_answered(
    address: tuple[str, int], slow: Slow
) -> None:
    answering = asyncio.create_task(exchange(address, request_of(BODY), half_close=True))
    await slow.started.wait()
    await asyncio.sleep(4 * connection.FIRST_PROBE_S)  # several probes
    slow.released.set()
    *informational, head, body = (await answering).split(b"\r\n\r\n")
    assert informational
    assert set(informational) == {b"HTTP/1.1 100 Continue"}
    assert head.startswith(b"HTTP/1.1 200")
    assert body == b"done"
    assert not slow.cancelled.is_set()


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
async def test_a_client_that_leaves_is_noticed(
    address: tuple[str, int], slow: Slow, version: bytes
) -> None:
    _, writer = await asyncio.open_connection(*address)
    writer.write(request_of(BODY, version=version))
    await slow.started.wait()
    writer.close()
    await asyncio.wait_for(slow.cancelled.wait(), SECONDS)


async def test_half_a_request_is_dropped(address: tuple[str, int], slow: Slow) -> None:
    assert await exchange(address, request_of(BODY)[:-3], half_close=True) == b""
    assert not slow.started.is_set()


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_half_closed_clients_get_completions(tiny_server: Any, stream: bool) -> None:
    host, port = tiny_server.url.removeprefix("http://").split(":")
    body = json.dumps({"prompt": "x", "max_tokens": 4, "stream": stream}).encode()
    data = await exchange((host, int(port)), request_of(body), half_close=True)
    assert b"HTTP/1.1 200 OK" in data
    assert (b"[DONE]" if stream else b'"finish_reason":"length"') in data


@pytest.mark.slow
async def test_invalid_http_to_a_server(tiny_server: Any) -> None:
    host, port = tiny_server.url.removeprefix("http://").split(":")
    large = request_of(BODY, b"Cookie: " + b"c" * 70_000)
    status, error = error_in(await exchange((host, int(port)), large))
    assert (status, error["code"]) == (431, "headers_too_large")
    assert b" 200 OK" in (await exchange((host, int(port)), request_of(BODY), half_close=True))
