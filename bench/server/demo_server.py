"""A server of the demo model, and what the benchmarks that attack it ask of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from bench.common.server_process import ServerProcess
from jaxserve.bench.event_reader import EventReader

MODEL = "smollm2-135m"
FLAGS = (
    *("--max-num-seqs", "64", "--max-num-batched-tokens", "128", "--max-model-len", "1024"),
    *("--kv-cache-memory", "512MiB", "--no-access-log", "--drain-timeout", "60"),
)
LONG = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True}
HELD = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


def start(*flags: str) -> ServerProcess:
    """A server of the demo model, 64 sequences at once; `flags` win over FLAGS."""
    return ServerProcess.jaxserve(*FLAGS, *flags)


def session(url: str) -> aiohttp.ClientSession:
    """A client without a limit of connections, whose requests may take 300 s."""
    return aiohttp.ClientSession(
        url,
        timeout=aiohttp.ClientTimeout(total=300),
        connector=aiohttp.TCPConnector(limit=0),
    )


async def metrics(http: aiohttp.ClientSession) -> dict[str, float]:
    """The server's metrics by name; of one with labels, the sum over them."""
    async with http.get("/metrics") as response:
        text = await response.text()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


async def until_idle(http: aiohttp.ClientSession, limit_s: float = 60.0) -> float:
    """Seconds until no request runs or waits and no block is held."""
    begin = time.monotonic()
    while True:
        now = await metrics(http)
        held = {name: now[name] for name in HELD if now[name]}
        if not held:
            return time.monotonic() - begin
        assert time.monotonic() - begin < limit_s, f"still held: {held}"
        await asyncio.sleep(0.002)


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    """The events of a streamed answer, parsed; the last is "[DONE]"."""
    reader = EventReader()
    async for received in response.content.iter_any():
        for data in reader.feed(received):
            yield "[DONE]" if data == b"[DONE]" else json.loads(data)
