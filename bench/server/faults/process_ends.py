"""The engine is killed, or the server is told to stop, while requests stream."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from typing import Any

import aiohttp

from bench.common.server_client import events_of
from bench.common.server_process import ServerProcess
from bench.server.demo_server import LONG


async def kill(server: ServerProcess, http: aiohttp.ClientSession) -> dict[str, Any]:
    """kill -9 of the engine during 50 streams: each gets an error, and the server exits."""
    begun = 0
    killed = 0.0

    async def stream() -> tuple[float, Any]:
        nonlocal begun
        async with http.post("/v1/completions", json=LONG | {"stream": True}) as response:
            last = None
            async for event in events_of(response):
                if last is None:
                    begun += 1
                last = event
        return time.monotonic() - killed, last

    async def health() -> Counter[int]:
        """Statuses that a health probe gets until the server has gone."""
        statuses: Counter[int] = Counter()
        with contextlib.suppress(aiohttp.ClientConnectionError):
            while True:
                asked = time.monotonic()
                async with http.get("/health") as response:
                    statuses[response.status] += 1
                    assert response.status == 503 or asked - killed < 1.0, statuses
                await asyncio.sleep(0.01)
        return statuses

    streams = [asyncio.create_task(stream()) for _ in range(50)]
    while begun < 50:
        await asyncio.sleep(0.05)
    killed = time.monotonic()
    os.kill(server.engine_pid, signal.SIGKILL)
    statuses = await health()
    ends = await asyncio.gather(*streams)
    exit_status = await asyncio.to_thread(server.wait)
    assert exit_status != 0, "the server exited 0"
    assert statuses[503], "no probe got 503"
    assert all(last["error"]["code"] == "engine_dead" for _, last in ends)
    return {
        "streams": len(ends),
        "last_error_event_ms": round(max(at for at, _ in ends) * 1000),
        "health_answered": {str(status): count for status, count in statuses.items()},
        "exit_status": exit_status,
        "exit_s": round(time.monotonic() - killed, 2),
    }


async def stop(server: ServerProcess, http: aiohttp.ClientSession) -> dict[str, Any]:
    """SIGTERM under load: running requests finish, new ones are refused, exit status 0."""
    begun = 0

    async def stream() -> Any:
        nonlocal begun
        body = LONG | {"stream": True, "max_tokens": 40}
        async with http.post("/v1/completions", json=body) as response:
            last = None
            async for event in events_of(response):
                begun += last is None
                last = event
        return last

    streams = [asyncio.create_task(stream()) for _ in range(48)]
    while begun < 48:
        await asyncio.sleep(0.05)
    asked = time.monotonic()
    os.kill(server.pid, signal.SIGTERM)
    await asyncio.sleep(0.2)
    refused = 0
    for _ in range(5):
        try:
            async with http.post("/v1/completions", json=LONG) as response:
                refused += response.status == 503
        except aiohttp.ClientConnectionError:
            refused += 1
    ends = await asyncio.gather(*streams)
    finished = sum(end == "[DONE]" for end in ends)
    status = await asyncio.to_thread(server.wait)
    assert (finished, refused, status) == (48, 5, 0), (finished, refused, status)
    return {"streams_finished": finished, "exit_s": round(time.monotonic() - asked, 2)}
