"""A long run at twice the rate that the server can serve:

    python -m bench.server.soak [--minutes 20] [--overload 2]

Measures the request rate of a server of the demo model with as many clients as it runs sequences,
then sends requests of all kinds at --overload times that rate. The exit status is 1 unless the
server refuses what is too much with 429 or 503 and a Retry-After, completes every request that it
accepts, and does not grow in memory. The last line is one flat JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench.common.figures import Figures, flat, print_figures
from bench.common.server_process import ServerProcess
from bench.server import demo_server
from bench.server.demo_server import MODEL, until_idle

SEQUENCES = 16
FLAGS = ("--max-num-seqs", str(SEQUENCES), "--max-queued-requests", "32")
WARM_UP_S = 15.0
MOST_GROWTH = 0.05  # of memory, from the second third of the run to the last


@dataclass
class Tally:
    """What became of the requests.

    Args:
        finished, cut: answers with status 200 that were whole, and that were not.
        tokens: asked for by the finished ones.
        memory: (seconds, MiB of the server process, MiB of the engine process).
    """

    statuses: Counter[int] = field(default_factory=Counter)
    finished: int = 0
    cut: int = 0
    tokens: int = 0
    memory: list[tuple[float, float, float]] = field(default_factory=list)

    @property
    def of_server(self) -> list[float]:
        return [server for _, server, _ in self.memory]

    @property
    def of_engine(self) -> list[float]:
        return [engine for *_, engine in self.memory]


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def some_request(draws: random.Random) -> tuple[str, dict[str, Any]]:
    """A path and a body for it."""
    words = " ".join(str(draws.randrange(1000)) for _ in range(draws.choice((2, 10, 60))))
    body: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": draws.choice((4, 16, 48)),
        "stream": draws.random() < 0.6,
        "ignore_eos": True,
        "seed": draws.randrange(1000),
    }
    body |= draws.choice(({}, {}, {"logprobs": True, "top_logprobs": 3}, {"top_p": 0.9}))
    if "logprobs" not in body and draws.random() < 0.4:
        return "/v1/completions", body | {"prompt": words, "n": draws.choice((1, 1, 2))}
    return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": words}]}


async def send(http: aiohttp.ClientSession, tally: Tally, draws: random.Random) -> None:
    path, body = some_request(draws)
    async with http.post(path, json=body) as response:
        data = await response.read()
        tally.statuses[response.status] += 1
        if response.status == 200:
            whole = b"[DONE]" in data if body["stream"] else b'"usage"' in data
            tally.finished += whole
            tally.cut += not whole
            tally.tokens += body["max_tokens"] * body.get("n", 1) * whole
        else:
            assert "Retry-After" in response.headers, data


async def capacity(http: aiohttp.ClientSession) -> float:
    """Requests a second with as many clients as sequences."""
    tally, draws, end = Tally(), random.Random(0), time.monotonic() + WARM_UP_S

    async def client() -> None:
        while time.monotonic() < end:
            await send(http, tally, draws)

    begin = time.monotonic()
    await asyncio.gather(*(client() for _ in range(SEQUENCES)))
    return tally.finished / (time.monotonic() - begin)


async def soak(server: ServerProcess, minutes: float, overload: float) -> tuple[Figures, Tally]:
    draws = random.Random(1)
    async with demo_server.session(server.url) as http:
        able_per_s = await capacity(http)
        tally, begin = Tally(), time.monotonic()
        tasks: set[asyncio.Task[None]] = set()
        read_at = 0.0
        while (now := time.monotonic() - begin) < minutes * 60:
            task = asyncio.create_task(send(http, tally, draws))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            if now - read_at > 2.0 or not tally.memory:
                read_at = now
                own = resident_mib(server.pid), resident_mib(server.engine_pid)
                tally.memory.append((round(now, 1), *map(round, own)))
            await asyncio.sleep(draws.expovariate(overload * able_per_s))
        await asyncio.gather(*tasks)
        await until_idle(http)
    figures: Figures = {
        "duration_min": minutes,
        "capacity_requests_per_s": round(able_per_s, 2),
        "sent": sum(tally.statuses.values()),
        **flat({"answered": {str(s): n for s, n in sorted(tally.statuses.items())}}),
        "finished": tally.finished,
        "cut": tally.cut,
        "tokens": tally.tokens,
        "server_growth_share": round(growth(tally.of_server), 4),
        "engine_growth_share": round(growth(tally.of_engine), 4),
        "server_first_mib": tally.memory[0][1],
        "server_last_mib": tally.memory[-1][1],
        "engine_first_mib": tally.memory[0][2],
        "engine_last_mib": tally.memory[-1][2],
    }
    return figures, tally


def growth(values: Sequence[float]) -> float:
    """Growth from the second third of a run to the last, as a share: the first third fills
    caches."""
    third = max(1, len(values) // 3)
    early = values[third : 2 * third] or values[:1]
    late = values[2 * third :] or early
    return sum(late) / len(late) / (sum(early) / len(early)) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--overload", type=float, default=2.0)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    server = demo_server.start(*FLAGS)
    try:
        figures, tally = asyncio.run(soak(server, args.minutes, args.overload))
    finally:
        server.terminate()
        status = server.wait()
    good = (
        set(tally.statuses) <= {200, 429, 503}
        and not tally.cut
        and max(growth(tally.of_server), growth(tally.of_engine)) < MOST_GROWTH
        and status == 0
    )
    print_figures(figures | {"exit_status": status, "good": good})
    sys.exit(not good)


if __name__ == "__main__":
    main()
