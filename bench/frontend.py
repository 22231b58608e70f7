"""The front end by itself: tokens a second that the server process streams, and the latency that it
adds, behind an engine that answers at once (fake_engine.py, a process that speaks the real
protocol):

    python -m bench.frontend [--clients 1 64 512] [--rate 20000] [--seconds 5]

For each number of clients two runs: the engine without a limit (throughput), and at --rate tokens
a second together (latency added: from the engine's send to the client's read, a token). With two
cores the server has one to itself, and clients and engine share the other. Prints a table, then
one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOKEN = b"~"
# Of which a fake engine uses the tokenizer alone.
MODEL = "smollm2-135m"
CORES = sorted(os.sched_getaffinity(0))


@dataclass
class Figures:
    """Args: core: share of one core that the server process used."""

    clients: int
    rate: float
    tokens: int
    tokens_per_s: float
    core: float
    tokens_per_core_s: float
    p50_ms: float
    p99_ms: float


class Client(asyncio.Protocol):
    """One streamed chat, read as raw bytes: when each token came."""

    def __init__(self, name: str, tokens: int, stream: bool = True) -> None:
        self.name, self._tokens, self._stream = name, tokens, stream
        self.came: list[float] = []
        self.done = asyncio.get_running_loop().create_future()
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        body = json.dumps(
            {
                "model": MODEL,
                "messages": [{"role": "user", "content": "hi"}],
                "stream": self._stream,
                "max_tokens": self._tokens,
                "ignore_eos": True,
            }
        ).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nX-Request-Id: {self.name}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        transport.write(head.encode() + body)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.came += [time.monotonic()] * data.count(TOKEN)
        self._tail = (self._tail + data)[-64:]

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(b"[DONE]" in self._tail)


def start_server(folder: str, steps_per_s: float) -> tuple[subprocess.Popen[str], int]:
    environment = os.environ | {
        "FAKE_STEPS_PER_S": str(steps_per_s),
        "FAKE_LOG": f"{folder}/log.json",
        "FAKE_CORES": str(CORES[-1]),
    }
    command = [sys.executable, "-m", "bench.frontend", "--serve"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline().rpartition(":")[2])


def serve() -> None:
    from functools import partial

    from jaxserve.config import EngineConfig, ServerConfig
    from jaxserve.engine.client import EngineClient
    from jaxserve.server import lifecycle

    EngineClient.start = partial(EngineClient.start, module="bench.fake_engine")  # type: ignore[method-assign]
    os.sched_setaffinity(0, {CORES[0]})
    config = ServerConfig(port=0, access_log=False)
    asyncio.run(
        lifecycle.serve(EngineConfig(MODEL), config, lambda url, *_: print(url, flush=True))
    )


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def run_clients(port: int, clients: int, tokens: int, pid: int) -> tuple[list[Client], float]:
    """The clients, done, and the seconds of CPU that the server used meanwhile."""
    loop = asyncio.get_running_loop()
    made = [Client(f"c{i}", tokens) for i in range(clients)]
    before = cpu_seconds(pid)
    for client in made:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)
    whole = await asyncio.gather(*(client.done for client in made))
    assert all(whole), f"{whole.count(False)} streams were cut"
    return made, cpu_seconds(pid) - before


def measure(clients: int, rate: float, seconds: float) -> Figures:
    """Args: rate: tokens a second of all clients together; 0 is no limit."""
    steps_per_s = rate / clients
    tokens = int((rate or 40_000) * seconds / clients)
    tokens = max(16, min(tokens, 8_000))
    with tempfile.TemporaryDirectory() as folder:
        server, port = start_server(folder, steps_per_s)
        try:
            asyncio.run(run_clients(port, min(clients, 8), 16, server.pid))  # warms up
            made, cpu = asyncio.run(run_clients(port, clients, tokens, server.pid))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
        sent = json.loads(Path(folder, "log.json").read_text())["sent"]
    # The warm-up's requests have the same names; the last of a name is the measured one.
    by_name = {request_id.partition("-")[2]: times for request_id, times in sent.items()}
    late = []
    for client in made:
        times = by_name[client.name]
        assert len(times) == len(client.came) == tokens, (len(times), len(client.came), tokens)
        late += [came - at for at, came in zip(times, client.came, strict=True)]
    late.sort()
    # From when the last stream began to the end.
    begin, end = min(c.came[0] for c in made), max(c.came[-1] for c in made)
    total = clients * tokens
    return Figures(
        clients,
        rate,
        total,
        round(total / (end - begin)),
        round(cpu / (end - begin), 3),
        round(total / cpu),
        round(late[len(late) // 2] * 1000, 2),
        round(late[len(late) * 99 // 100] * 1000, 2),
    )


async def leave(port: int, clients: int) -> dict[str, float]:
    """When each client left, by name."""
    loop = asyncio.get_running_loop()
    left = {}
    made = [Client(f"l{i}", 8_000, stream=i % 2 == 0) for i in range(clients)]
    for client in made:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)
    await asyncio.sleep(1.0)
    for client in made:
        left[client.name] = time.monotonic()
        client.transport.abort()  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    return left


def measure_leaving(clients: int, rate: float) -> dict[str, float]:
    """How long after its client left a request is aborted, in ms."""
    with tempfile.TemporaryDirectory() as folder:
        server, port = start_server(folder, rate / clients)
        try:
            left = asyncio.run(leave(port, clients))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
        aborted = json.loads(Path(folder, "log.json").read_text())["aborted"]
    by_name = {request_id.partition("-")[2]: at for request_id, at in aborted.items()}
    assert by_name.keys() == left.keys()
    late = sorted(by_name[name] - at for name, at in left.items())
    return {
        "clients": clients,
        "p50_ms": round(late[len(late) // 2] * 1000, 2),
        "max_ms": round(late[-1] * 1000, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 64, 512])
    parser.add_argument("--rate", type=float, default=20_000, help="tokens a second (latency run)")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve()
        return
    os.sched_setaffinity(0, {CORES[-1]})
    print("clients  asked tok/s  tok/s  core  tok/core-s  added p50 ms  p99 ms")
    found = []
    for clients in args.clients:
        for rate in (0.0, args.rate):
            f = measure(clients, rate, args.seconds)
            found.append(asdict(f))
            asked = "all" if not rate else f"{rate:.0f}"
            print(
                f"{clients:7}  {asked:>11}  {f.tokens_per_s:5}  {f.core:4.2f}  "
                f"{f.tokens_per_core_s:10}  {f.p50_ms:12}  {f.p99_ms:6}",
                flush=True,
            )
    leaving = measure_leaving(200, args.rate)
    print(f"leaving: {leaving}")
    print(json.dumps({"frontend": found, "leaving": leaving}))


if __name__ == "__main__":
    main()
