"""`jaxserve top [URL]`: a server's requests, blocks and speed in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jaxserve.errors import ConfigError, JaxserveError

if TYPE_CHECKING:
    import aiohttp
    from rich.console import RenderableType

SUMMARY = "show what a server does, as its page does, in the terminal"
POLL_S = 2.0  # between readings of /metrics
AGAIN_S = 1.0  # before a cut connection is tried again
MOST_ROWS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        *("url",), nargs="?", default="http://127.0.0.1:8000", metavar="URL", help="of the server"
    )
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="the server's, if it needs one (default: $JAXSERVE_API_KEY)",
    )


def run(args: argparse.Namespace) -> int:
    """Until Ctrl-C. Where the output is no terminal, one picture after a reading of the figures."""
    if not args.url.startswith(("http://", "https://")):
        raise ConfigError(f"URL must begin with http:// or https://; it was {args.url!r}")
    key = args.api_key or os.environ.get("JAXSERVE_API_KEY", "").partition(",")[0]
    asyncio.run(_show(args.url.rstrip("/"), key))
    return 0


@dataclass(slots=True)
class Sequence:
    """A running sequence, as the events tell it. Args: blocks: in the tables of all groups."""

    name: str
    prompt: int
    cached: int
    computed: int = 0
    known: int = 0
    lengths: dict[int, int] = field(default_factory=dict)

    @property
    def blocks(self) -> int:
        return sum(self.lengths.values())


class Top:
    """What is shown."""

    def __init__(self, url: str) -> None:
        self.url, self.problem = url, "connecting"
        self.about: dict[str, Any] = {}
        self.sequences: dict[int, Sequence] = {}
        self.stats: dict[str, int] = {}
        self.last_step: list[Any] = []
        self.rates: dict[str, float] = {}
        self._readings: deque[tuple[float, dict[str, float]]] = deque(maxlen=2)

    def take(self, event: dict[str, Any]) -> None:
        """Takes in an event of /v1/engine/events."""
        self.problem = ""
        if event.get("first"):
            self.about = event
            self.sequences.clear()
        for key, _ in event.get("ended", ()):
            self.sequences.pop(key, None)
        for key, name, index, prompt, cached in event.get("started", ()):
            label = f"{name} #{index}" if index else name
            self.sequences[key] = Sequence(label, prompt, cached, known=prompt)
        for key, group, released, first, *entries in event.get("tables", ()):
            added = sum(1 if entry > 0 else -entry for entry in entries)
            self.sequences[key].lengths[group] = first + added - released
        numbers = event.get("tokens", [])
        for key, computed, known in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
            self.sequences[key].computed, self.sequences[key].known = computed, known
        self.last_step = (event.get("steps") or [self.last_step])[-1]
        self.stats = event.get("stats", self.stats)

    def read(self, now: float, metrics: str) -> None:
        """Takes in /metrics. Args: now: in seconds."""
        from prometheus_client.parser import text_string_to_metric_families

        totals: dict[str, float] = {}
        for family in text_string_to_metric_families(metrics):
            for sample in family.samples:
                name = sample.name.rpartition(":")[2]
                totals[name] = totals.get(name, 0.0) + sample.value
        self._readings.append((now, totals))
        (before, old), (after, new) = self._readings[0], self._readings[-1]
        if after > before:

            def grew(name: str) -> float:
                return new.get(name, 0.0) - old.get(name, 0.0)

            self.rates["output tokens/s"] = grew("generation_tokens_total") / (after - before)
            self.rates["prompt tokens/s"] = grew("prompt_tokens_total") / (after - before)
            for label, name in (
                ("first token ms", "time_to_first_token_seconds"),
                ("between tokens ms", "inter_token_latency_seconds"),
            ):
                if count := grew(f"{name}_count"):
                    self.rates[label] = 1000 * grew(f"{name}_sum") / count

    def render(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        # Names come from clients: as Text they are never read as markup.
        parts: list[RenderableType] = [Text(f"{self.url}  {self.about.get('model', '')}", "bold")]
        if self.problem:
            parts.append(Text(self.problem, "yellow"))
        if self.stats:
            parts.append(Text(_stats_line(self.stats)))
            parts.append(ProgressBar(self.stats["blocks_total"], self.stats["blocks_used"]))
        parts.append(Text("  ".join(f"{name} {rate:,.1f}" for name, rate in self.rates.items())))
        if self.last_step:
            parts.append(Text(_step_line(self.last_step, self.about.get("token_budget", 0))))
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("request", overflow="ellipsis", no_wrap=True)
        for name in ("prompt", "cached", "output", "blocks"):
            table.add_column(name, justify="right")
        for one in list(self.sequences.values())[:MOST_ROWS]:
            numbers = (one.prompt, one.cached, max(0, one.known - one.prompt), one.blocks)
            table.add_row(Text(_printable(one.name)), *(f"{number:,}" for number in numbers))
        return Group(*parts, table)


def _stats_line(stats: dict[str, int]) -> str:
    figures = {
        "running": f"{stats['running']}",
        "waiting": f"{stats['waiting']}",
        "blocks": f"{stats['blocks_used']:,} of {stats['blocks_total']:,}",
        "cache hits": f"{stats['prefix_hits']:,} of {stats['prefix_queries']:,} tokens",
        **{n: f"{stats[n]:,}" for n in ("preemptions", "copies", "evictions", "compiles")},
    }
    return "  ".join(f"{name} {figure}" for name, figure in figures.items())


def _step_line(step: list[Any], budget: int) -> str:
    number, decodes, padded, device_ms, host_ms, prompts = step
    return (
        f"step {number:,}: {decodes} decoded, {sum(prompts[1::2])} of prompts, padded to {padded} "
        f"of {budget}; device {device_ms} ms, host {host_ms} ms"
    )


def _printable(name: str) -> str:
    """Without control characters, which could steer the terminal."""
    return "".join(c if c.isprintable() else "?" for c in name)


async def _show(url: str, key: str) -> None:
    import aiohttp
    from rich.console import Console
    from rich.live import Live

    top, headers = Top(url), {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as http:
        if not sys.stdout.isatty():
            reading = asyncio.create_task(_read_events(http, top))
            try:
                for _ in range(2):
                    await _poll(http, top)
                    if reading.done():
                        reading.result()
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            Console(width=120).print(top.render())
            return
        with Live(get_renderable=top.render, screen=True, refresh_per_second=5):
            await asyncio.gather(_keep(_read_events, http, top), _keep(_poll, http, top))


async def _keep(read: Any, http: aiohttp.ClientSession, top: Top) -> None:
    """Reads on, whatever happens to the connection."""
    import aiohttp

    while True:
        try:
            await read(http, top)
        except (aiohttp.ClientError, OSError) as error:
            top.problem = f"no connection: {error}"
            await asyncio.sleep(AGAIN_S)


async def _read_events(http: aiohttp.ClientSession, top: Top) -> None:
    from jaxserve.bench.event_reader import EventReader

    reader = EventReader()
    async with http.get(f"{top.url}/v1/engine/events") as response:
        await _check(response)
        async for data in response.content.iter_any():
            for event in reader.feed(data):
                top.take(json.loads(event))


async def _poll(http: aiohttp.ClientSession, top: Top) -> None:
    async with http.get(f"{top.url}/metrics", headers={"Accept": "text/plain"}) as response:
        await _check(response)
        top.read(asyncio.get_running_loop().time(), await response.text())
    await asyncio.sleep(POLL_S)


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status == 401:
        raise ConfigError("the server needs a valid API key: give it with --api-key")
    if response.status != 200:
        raise JaxserveError(f"{response.url} answered {response.status}; is it a jaxserve server?")
