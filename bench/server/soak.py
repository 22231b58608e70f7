"""A long run at twice what the server can do:

    python -m bench.server.soak [--minutes 20] [--overload 2]

Measures what a server of the demo model does with as many clients as it has places, then sends
requests of all kinds at --overload times that rate. True to its promises, the server refuses the
overflow with 429 or 503 and a Retry-After, finishes everything that it lets in, and keeps its
memory. Exit status 1 if not. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench.server.faults import LIMIT, MODEL, Server, until_idle

PLACES = 16
FLAGS = ("--max-num-seqs", str(PLACES), "--max-queued-requests", "32")
WARM_UP_S = 15.0
GROWTH = 0.05  # of memory, from the first third of the run to the last
RANDOM = random.Random(0)


@dataclass
class Tally:
    statuses: Counter[int] = field(default_factory=Counter)
    finished: int = 0
    cut: int = 0
    tokens: int = 0
    memory: list[tuple[float, float, float]] = field(default_factory=list)  # s, MiB, MiB


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def some_request() -> tuple[str, dict[str, Any]]:
    words = " ".join(str(RANDOM.randrange(1000)) for _ in range(RANDOM.choice((2, 10, 60))))
    body: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": RANDOM.choice((4, 16, 48)),
        "stream": RANDOM.random() < 0.6,
        "ignore_eos": True,
        "seed": RANDOM.randrange(1000),
    }
    body |= RANDOM.choice(({}, {}, {"logprobs": True, "top_logprobs": 3}, {"top_p": 0.9}))
    if "logprobs" not in body and RANDOM.random() < 0.4:
        return "/v1/completions", body | {"prompt": words, "n": RANDOM.choice((1, 1, 2))}
    return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": words}]}


async def send(http: aiohttp.ClientSession, tally: Tally) -> None:
    path, body = some_request()
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
    """Requests a second with as many clients as places."""
    tally, end = Tally(), time.monotonic() + WARM_UP_S

    async def client() -> None:
        while time.monotonic() < end:
            await send(http, tally)

    begin = time.monotonic()
    await asyncio.gather(*(client() for _ in range(PLACES)))
    return tally.finished / (time.monotonic() - begin)


async def soak(server: Server, minutes: float, overload: float) -> dict[str, Any]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(server.url, timeout=LIMIT, connector=connector) as http:
        able = await capacity(http)
        tally, begin = Tally(), time.monotonic()
        tasks: set[asyncio.Task[None]] = set()
        looked = 0.0
        while (now := time.monotonic() - begin) < minutes * 60:
            task = asyncio.create_task(send(http, tally))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            if now - looked > 2.0 or not tally.memory:
                looked = now
                own = resident_mib(server.process.pid), resident_mib(server.engine_pid)
                tally.memory.append((round(now, 1), *map(round, own)))
            await asyncio.sleep(RANDOM.expovariate(overload * able))
        await asyncio.gather(*tasks)
        await until_idle(http)
    third = max(1, len(tally.memory) // 3)

    def growth(column: int) -> float:
        early = [m[column] for m in tally.memory[third : 2 * third]] or [tally.memory[0][column]]
        late = [m[column] for m in tally.memory[2 * third :]]
        return sum(late) / len(late) / (sum(early) / len(early)) - 1

    return {
        "minutes": minutes,
        "capacity_per_s": round(able, 2),
        "sent": sum(tally.statuses.values()),
        "statuses": {str(status): n for status, n in sorted(tally.statuses.items())},
        "finished": tally.finished,
        "cut": tally.cut,
        "tokens": tally.tokens,
        "server_growth": round(growth(1), 4),
        "engine_growth": round(growth(2), 4),
        "memory_mib_first_last": [tally.memory[0][1:], tally.memory[-1][1:]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--overload", type=float, default=2.0)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    server = Server(*FLAGS)
    try:
        found = asyncio.run(soak(server, args.minutes, args.overload))
    finally:
        server.process.terminate()
        status = server.wait()
    good = (
        set(found["statuses"]) <= {"200", "429", "503"}
        and not found["cut"]
        and max(found["server_growth"], found["engine_growth"]) < GROWTH
        and status == 0
    )
    print(json.dumps({"soak": found | {"exit_status": status, "good": good}}))
    sys.exit(not good)


if __name__ == "__main__":
    main()
