"""A long run with the page open under load (needs jaxserve[dev] and a Chromium):

    python -m bench.server.page.soak [--minutes 20]

A server of the demo model with a small pool gets more requests than it can run at once, so that
blocks are shared, copied, evicted and given up all the time, while a browser shows its page. The
exit status is 1 unless the memory of server, engine and tab stays flat, every request is answered,
and the page has no error. The last line is one flat JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from playwright.async_api import Browser, Page

from bench.common.figures import Figures, print_figures
from bench.common.server_client import scrape
from bench.common.server_process import ServerProcess
from bench.server import demo_server
from bench.server.page.browser import chromium
from bench.server.page.load import Load
from bench.server.soak import growth, resident_mib

FLAGS = ("--max-num-seqs", "16", "--kv-cache-memory", "96MiB")
IN_FLIGHT = 20
PERIOD_S = 10.0  # between readings
MOST_GROWTH = 0.05  # from the second third of the run to the last
# Of the tab's objects, a few MiB, which hold figures of the last 15 minutes.
MOST_HEAP_GROWTH_MIB = 1.0


@dataclass(frozen=True)
class Reading:
    """MiB of resident memory, and of the tab's objects after a garbage collection.

    Args:
        tab: the process that renders the page.
        nodes: of the page's document.
    """

    server: float
    engine: float
    tab: float
    heap: float
    nodes: float


class Tab:
    """A page whose memory is read through Chromium's own protocol."""

    def __init__(self, browser: Browser, page: Page) -> None:
        self._browser, self._page = browser, page
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on(
            "console",
            lambda message: self.errors.append(message.text) if message.type == "error" else None,
        )

    async def open(self, url: str) -> None:
        await self._page.goto(url)
        await self._page.get_by_text("Connected", exact=True).wait_for()
        self._session = await self._page.context.new_cdp_session(self._page)
        await self._session.send("Performance.enable")
        whole = await self._browser.new_browser_cdp_session()
        processes = (await whole.send("SystemInfo.getProcessInfo"))["processInfo"]
        renderers = [p["id"] for p in processes if p["type"] == "renderer"]
        self._pid = max(renderers, key=resident_mib)

    async def read(self) -> tuple[float, float, float]:
        await self._session.send("HeapProfiler.collectGarbage")
        metrics = (await self._session.send("Performance.getMetrics"))["metrics"]
        values = {metric["name"]: metric["value"] for metric in metrics}
        return resident_mib(self._pid), values["JSHeapUsedSize"] / 2**20, values["Nodes"]


async def soak(server: ServerProcess, minutes: float) -> Figures:
    async with demo_server.session(server.url) as http, chromium() as browser:
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        tab = Tab(browser, page)
        await tab.open(server.url)
        load = Load(http, IN_FLIGHT)
        running = asyncio.create_task(load.run())
        readings: list[Reading] = []
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            await asyncio.sleep(PERIOD_S)
            assert not running.done(), "the load has ended"
            of_server = resident_mib(server.pid), resident_mib(server.engine_pid)
            readings.append(Reading(*of_server, *await tab.read()))
        connected = await page.locator("#connection").inner_text()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        metrics = await scrape(http)
    figures: Figures = {"duration_min": minutes, "answered": load.done, "failed": load.failed}
    for name in ("preemptions", "evictions", "block_copies"):
        prefix = {"preemptions": "vllm:num_", "evictions": "jaxserve:prefix_cache_"}
        figures[name] = int(metrics.total(f"{prefix.get(name, 'jaxserve:')}{name}_total"))
    for name in ("server", "engine", "tab", "heap"):
        values = [getattr(reading, name) for reading in readings]
        figures[f"{name}_growth_share"] = round(growth(values), 4)
        figures[f"{name}_first_mib"] = round(values[0], 1)
        figures[f"{name}_last_mib"] = round(values[-1], 1)
    figures["nodes_first"], figures["nodes_last"] = readings[0].nodes, readings[-1].nodes
    figures["page_errors"] = len(tab.errors)
    figures["connected"] = connected == "Connected"
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    server = demo_server.start(*FLAGS)
    try:
        figures = asyncio.run(soak(server, args.minutes))
    finally:
        server.stop()
    processes = max(figures[f"{name}_growth_share"] for name in ("server", "engine", "tab"))
    heap_mib = figures["heap_growth_share"] * figures["heap_last_mib"]
    flat = processes < MOST_GROWTH and heap_mib < MOST_HEAP_GROWTH_MIB
    good = flat and not figures["failed"] and not figures["page_errors"]
    print_figures(figures | {"good": bool(good and figures["connected"])})
    sys.exit(not good)


if __name__ == "__main__":
    main()
