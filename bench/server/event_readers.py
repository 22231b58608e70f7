"""What readers of /v1/engine/events cost a server, with 0, 1 and 3 of them:

    python -m bench.server.event_readers [--seconds 20]

A server of the demo model decodes as many requests as it runs at once. Rounds with 0, 1 and 3
readers take turns, so that a machine that gets slower is slower for all. The last line is one flat
JSON object with the medians over the rounds: output tokens a second, milliseconds of a step on the
device and of an idle device, and the events and kilobytes that a reader gets a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from contextlib import suppress
from typing import Any

import aiohttp

from bench.common.figures import print_figures
from bench.common.server_client import Metrics, events_of, scrape
from bench.server import demo_server

READERS = (0, 1, 3)
ROUNDS = 3
RUNNING = 32


async def _generate(http: aiohttp.ClientSession) -> None:
    """Keeps RUNNING choices running."""
    body = {
        "model": demo_server.MODEL,
        "prompt": [f"{n} facts about the sea: " for n in range(RUNNING)],
        "max_tokens": 1500,
        "ignore_eos": True,
        "stream": True,
    }
    while True:
        async with http.post("/v1/completions", json=body) as response:
            response.raise_for_status()
            async for _ in response.content.iter_any():
                pass


async def _read(http: aiohttp.ClientSession, got: dict[str, float]) -> None:
    async with http.get("/v1/engine/events") as response:
        response.raise_for_status()
        async for event in events_of(response):
            got["events"] += 1
            got["bytes"] += len(json.dumps(event, separators=(",", ":"))) + 8


def _grew(before: Metrics, after: Metrics, name: str) -> float:
    return after.total(name) - before.total(name)


async def _round(http: aiohttp.ClientSession, readers: int, seconds: float) -> dict[str, float]:
    got = {"events": 0.0, "bytes": 0.0}
    tasks = [asyncio.create_task(_read(http, got)) for _ in range(readers)]
    await asyncio.sleep(2)  # the whole state is told first
    got.update(events=0.0, bytes=0.0)
    before = await scrape(http)
    await asyncio.sleep(seconds)
    after = await scrape(http)
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    steps = _grew(before, after, "jaxserve:step_duration_seconds_count")
    step_s = _grew(before, after, "jaxserve:step_duration_seconds_sum") / steps
    idle_s = _grew(before, after, "jaxserve:device_idle_seconds_total") / steps
    return {
        "tokens_per_s": _grew(before, after, "vllm:generation_tokens_total") / seconds,
        "step_ms": 1000 * step_s,
        "device_idle_ms_per_step": 1000 * idle_s,
        "events_per_s_per_reader": got["events"] / seconds / max(1, readers),
        "kB_per_s_per_reader": got["bytes"] / 1000 / seconds / max(1, readers),
    }


async def _measure(url: str, seconds: float) -> dict[str, Any]:
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, timeout=timeout) as http:
        load = asyncio.create_task(_generate(http))
        await asyncio.sleep(5)
        rounds: dict[int, list[dict[str, float]]] = {readers: [] for readers in READERS}
        for _ in range(ROUNDS):
            for readers in READERS:
                rounds[readers].append(await _round(http, readers, seconds))
        load.cancel()
        with suppress(asyncio.CancelledError):
            await load
    return {
        f"{name}_{readers}_readers": round(statistics.median(r[name] for r in several), 2)
        for readers, several in rounds.items()
        for name in several[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each round")
    args = parser.parse_args()
    server = demo_server.start("--max-num-seqs", str(RUNNING), "--max-model-len", "2048")
    try:
        print_figures(asyncio.run(_measure(server.url, args.seconds)))
    finally:
        server.stop()


if __name__ == "__main__":
    main()
