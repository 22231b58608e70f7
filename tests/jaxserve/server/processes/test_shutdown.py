"""Clients that disconnect, engines that die, servers that are stopped."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from bench.common.server_client import events_of, scrape
from jaxserve.server.processes import connection

pytestmark = pytest.mark.slow

# Long enough to be still running when a test ends it.
LONG = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True, "temperature": 0}
SHORT = {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}
# Only against hanging; nothing is measured.
LIMIT = aiohttp.ClientTimeout(total=120)


def completions(server: Any) -> str:
    return f"{server.url}/v1/completions"


async def finish_short(http: aiohttp.ClientSession, server: Any) -> None:
    async with http.post(completions(server), json={"model": server.model, **SHORT}) as response:
        assert response.status == 200
        assert (await response.json())["usage"]["completion_tokens"] == 4


def test_the_example_of_the_ready_line_works(server: Any) -> None:
    if not shutil.which("curl"):
        pytest.skip("no curl here")
    done = subprocess.run(
        server.example, shell=True, capture_output=True, check=True, timeout=120, text=True
    )
    assert "Paris" in json.loads(done.stdout)["choices"][0]["message"]["content"]


async def test_health_and_version(server: Any) -> None:
    async with aiohttp.ClientSession(server.url) as http:
        async with http.get("/health") as response:
            assert response.status == 200
        async with http.get("/version") as response:
            assert (await response.json())["version"]


async def test_an_engine_that_is_stuck_is_not_healthy(start_tiny: Callable[..., Any]) -> None:
    server = start_tiny("--stall-timeout", "1")
    async with aiohttp.ClientSession(server.url, timeout=LIMIT) as http:

        async def health() -> Any:
            async with http.get("/health") as response:
                return response.status, (await response.json()).get("error", {}).get("code")

        body = {"model": server.model, **LONG, "stream": True}
        async with http.post("/v1/completions", json=body) as response:
            stream = events_of(response)
            await anext(stream)
            os.kill(server.engine_pid, signal.SIGSTOP)
            while (found := await health()) == (200, None):
                await asyncio.sleep(0.1)
            assert found == (503, "engine_stuck")
            os.kill(server.engine_pid, signal.SIGCONT)
            assert [event async for event in stream][-1] == "[DONE]"
        # Without requests an engine may be silent for any time.
        await asyncio.sleep(1.5)
        assert await health() == (200, None)


async def test_a_client_that_disconnects_frees_its_place(
    start_server: Callable[..., Any],
) -> None:
    # One sequence at a time: while one runs, the next waits, for longer than LIMIT.
    one_long = ("--max-num-seqs", "1", "--max-model-len", "8192", "--kv-cache-memory", "512MiB")
    server = start_server(*one_long)
    body = {"model": server.model, **LONG, "max_tokens": 8000}
    async with aiohttp.ClientSession(timeout=LIMIT) as http:
        async with http.post(completions(server), json=body | {"stream": True}) as response:
            await anext(events_of(response))
            response.close()
        await finish_short(http, server)

        whole = asyncio.create_task(http.post(completions(server), json=body))
        await asyncio.sleep(1)
        assert not whole.done()
        whole.cancel()
        await finish_short(http, server)

        batch = body | {"prompt": ["One", "Two", "Three"], "stream": True}
        async with http.post(completions(server), json=batch) as response:
            await anext(events_of(response))
            response.close()
        await finish_short(http, server)
    assert "Traceback" not in server.errors()


async def test_a_stalled_reader_does_not_block_others(server: Any) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({"model": server.model, "stream": True, **LONG}).encode()
    _, writer = await asyncio.open_connection(host, int(port), limit=1)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    await writer.drain()
    try:
        async with aiohttp.ClientSession(timeout=LIMIT) as http:
            await asyncio.gather(*(finish_short(http, server) for _ in range(4)))
    finally:
        writer.close()


def test_a_stop_while_starting_leaves_no_process(start_server: Callable[..., Any]) -> None:
    server = start_server(wait=False)
    while not server.find_family():
        assert server.process.poll() is None, server.errors()
        time.sleep(0.01)
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert "Traceback" not in server.errors()


def test_a_stop_while_downloading_waits_for_no_hub(
    start_server: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent_hub:
        host, port = silent_hub.getsockname()
        monkeypatch.setenv("HF_ENDPOINT", f"http://{host}:{port}")
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        server = start_server("owner/name", wait=False)
        silent_hub.settimeout(60)
        connection, _ = silent_hub.accept()
        with connection:
            assert server.find_family()
            server.process.send_signal(signal.SIGTERM)
            assert server.wait() == 0
    assert "Traceback" not in server.errors()


def test_a_killed_server_leaves_no_process(
    start_server: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    server = start_server(wait=False)
    while not list(tmp_path.glob("jaxserve-*")) or not server.find_family():
        assert server.process.poll() is None, server.errors()
        time.sleep(0.01)
    server.process.kill()
    server.wait()
    assert not list(tmp_path.glob("jaxserve-*"))


async def test_sigterm_lets_running_requests_finish(start_server: Callable[..., Any]) -> None:
    server = start_server()
    body = {"model": server.model, **LONG, "max_tokens": 40, "stream": True}
    async with (
        aiohttp.ClientSession(timeout=LIMIT) as http,
        http.post(completions(server), json=body) as response,
    ):
        stream = events_of(response)
        await anext(stream)
        server.process.send_signal(signal.SIGTERM)
        events = [event async for event in stream]
        assert events[-1] == "[DONE]"
        assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert await asyncio.to_thread(server.wait) == 0


async def test_new_connections_are_told_to_retry_while_the_server_drains(
    start_server: Callable[..., Any],
) -> None:
    server = start_server("--drain-timeout", "60")
    body = {"model": server.model, **LONG, "stream": True}
    async with (
        aiohttp.ClientSession(timeout=LIMIT) as http,
        http.post(completions(server), json=body) as response,
    ):
        stream = events_of(response)
        await anext(stream)
        server.process.send_signal(signal.SIGTERM)
        while True:
            async with (
                aiohttp.ClientSession(server.url, timeout=LIMIT) as other,
                other.get("/ready") as ready,
            ):
                if ready.status == 503:
                    break
            await asyncio.sleep(0.01)
        async with (
            aiohttp.ClientSession(server.url, timeout=LIMIT) as other,
            other.post("/v1/completions", json={"model": server.model, **SHORT}) as refused,
        ):
            assert refused.status == 503
            assert int(refused.headers["Retry-After"]) > 0
            assert (await refused.json())["error"]["code"] == "shutting_down"
        assert [event async for event in stream][-1] == "[DONE]"
    assert await asyncio.to_thread(server.wait) == 0


async def test_a_connection_without_a_request_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this process, where the limit can be set."""
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.2)

    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", hello)
    runner = connection.ConnectionRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")  # and no empty line
        assert await asyncio.wait_for(reader.read(), 30) == b""
        async with aiohttp.ClientSession(f"http://{host}:{port}") as http:
            for _ in range(2):  # a connection that is in use stays
                async with http.get("/") as response:
                    assert await response.text() == "hello"
                await asyncio.sleep(0.4)
    finally:
        await runner.cleanup()


async def test_requests_that_outlast_the_drain_timeout_get_an_error(
    start_server: Callable[..., Any],
) -> None:
    server = start_server("--drain-timeout", "0.5")
    body = {"model": server.model, **LONG}
    async with aiohttp.ClientSession(timeout=LIMIT) as http:
        whole = asyncio.create_task(http.post(completions(server), json=body))
        async with http.post(completions(server), json=body | {"stream": True}) as response:
            stream = events_of(response)
            await anext(stream)
            server.process.send_signal(signal.SIGINT)
            events = [event async for event in stream]
        refused = await whole
        assert refused.status == 503
        for error in (events[-1]["error"], (await refused.json())["error"]):
            assert error["code"] == "shutting_down"
            assert error["message"] == "the server is shutting down"
    assert await asyncio.to_thread(server.wait) == 0
    assert "Traceback" not in server.errors()


async def test_a_dead_engine_fails_running_requests_and_ends_the_server(
    start_server: Callable[..., Any],
) -> None:
    server = start_server()
    body = {"model": server.model, **LONG}
    async with aiohttp.ClientSession(timeout=LIMIT) as http:
        whole = asyncio.create_task(http.post(completions(server), json=body))
        async with http.post(completions(server), json=body | {"stream": True}) as response:
            stream = events_of(response)
            await anext(stream)
            os.kill(server.engine_pid, signal.SIGKILL)
            events = [event async for event in stream]
        assert events[-1]["error"]["code"] == "engine_dead"
        failed = await whole
        assert failed.status == 503
        assert (await failed.json())["error"]["code"] == "engine_dead"
    assert await asyncio.to_thread(server.wait) == 1
    assert "jaxserve: the engine process died" in server.errors()
    assert "Traceback" not in server.errors()
    lines = [json.loads(line) for line in server.errors().splitlines() if line.startswith("{")]
    # The stream's headers said 200, but it failed.
    assert [line["status"] for line in lines if line["path"] == "/v1/completions"] == [503, 503]


async def test_a_dead_engine_is_restarted_with_engine_restarts(
    start_server: Callable[..., Any],
) -> None:
    server = start_server("--engine-restarts", "1")
    body = {"model": server.model, **LONG}
    async with aiohttp.ClientSession(server.url, timeout=LIMIT) as http:
        running = asyncio.create_task(http.post("/v1/completions", json=body))
        await finish_short(http, server)
        first = server.engine_pid
        os.kill(first, signal.SIGKILL)
        assert (await running).status == 503
        async with http.get("/health") as response:
            assert response.status == 503
        while True:
            async with http.get("/health") as response:
                if response.status == 200:
                    break
            await asyncio.sleep(0.1)
        await finish_short(http, server)
        (await scrape(http)).one("vllm:num_requests_running")  # fails if there is none
        server.find_family()
        assert server.engine_pid != first
        os.kill(server.engine_pid, signal.SIGKILL)
    assert await asyncio.to_thread(server.wait) == 1
    assert "Traceback" not in server.errors()


def test_a_stop_during_an_engine_restart(start_server: Callable[..., Any]) -> None:
    server = start_server("--engine-restarts", "1")
    os.kill(server.engine_pid, signal.SIGKILL)
    while "is restarted" not in server.errors():
        assert server.process.poll() is None, server.errors()
        time.sleep(0.01)
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert "Traceback" not in server.errors()
