"""Clients that disconnect: what they asked for ends, and its blocks are freed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import Any

import aiohttp

from bench.common.server_client import events_of
from bench.common.server_process import ServerProcess
from bench.server.demo_server import LONG, until_idle
from bench.server.faults.engine_reports import EngineReports


async def abort(server: ServerProcess, http: aiohttp.ClientSession) -> dict[str, Any]:
    """Time from a disconnect until the request no longer runs and its blocks are free."""
    found, draws = {}, random.Random(0)
    for stream in (True, False):
        times = []
        async with EngineReports(server) as reports:
            for _ in range(20):
                asked = http.post("/v1/completions", json=LONG | {"stream": stream})
                task = asyncio.create_task(asked.__aenter__())
                await reports.until(idle=False)
                if stream:
                    response = await task
                    await anext(events_of(response))
                await asyncio.sleep(draws.uniform(0.0, 0.3))  # at any point of a step
                left = time.monotonic()
                if stream:
                    response.close()
                else:
                    task.cancel()
                times.append(await reports.until(idle=True) - left)
        name = "streaming" if stream else "whole"
        found[f"{name}_max_ms"] = round(max(times) * 1000, 1)
        found[f"{name}_median_ms"] = round(sorted(times)[10] * 1000, 1)
        assert max(times) < 0.1, f"{name}: {times}"
    return found


async def leave(server: ServerProcess, http: aiohttp.ClientSession) -> dict[str, Any]:
    """200 clients that disconnect at random, streaming or not."""
    draws = random.Random(0)

    async def client() -> None:
        stream = draws.random() < 0.5
        await asyncio.sleep(draws.uniform(0, 5))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(draws.uniform(0.01, 3)):
                body = LONG | {"stream": stream, "n": draws.choice((1, 1, 2))}
                async with http.post("/v1/completions", json=body) as response:
                    await response.read()

    await asyncio.gather(*(client() for _ in range(200)))
    seconds = await until_idle(http)
    return {"clients": 200, "blocks_zero_after_ms": round(seconds * 1000)}
