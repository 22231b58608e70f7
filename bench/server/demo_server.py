"""A server of the demo model, for the benchmarks that attack it."""

from __future__ import annotations

import asyncio
import time

import aiohttp

from bench.common.server_client import scrape
from bench.common.server_process import ServerProcess

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


async def until_idle(http: aiohttp.ClientSession, limit_s: float = 60.0) -> float:
    """Seconds until no request runs or waits and no block is held."""
    begin = time.monotonic()
    while True:
        metrics = await scrape(http)
        held = {name: value for name in HELD if (value := metrics.total(name))}
        if not held:
            return time.monotonic() - begin
        assert time.monotonic() - begin < limit_s, f"still held: {held}"
        await asyncio.sleep(0.002)
