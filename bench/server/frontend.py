"""The front end by itself: tokens a second that the server process streams, and the latency that it
adds, behind an engine that answers at once (fake_engine.py, a process that speaks the real
protocol):

    python -m bench.server.frontend [--clients 1 64 512] [--rate 20000] [--seconds 5]
        [--api-workers 1]

For each number of clients two runs: the engine without a limit (throughput), and at --rate tokens
a second together (latency added: from the engine's send to the client's read, a token). The clients
are one process, the engine another. With two cores a server of one process has one to itself, and
clients and engine share the other; a server of several processes shares both with them, so that its
figures say little of a machine with cores to spare. Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
TOKEN = b"~"
# Of which a fake engine uses the tokenizer alone.
MODEL = "smollm2-135m"
CORES = sorted(os.sched_getaffinity(0))


@dataclass
class Figures:
    """Args:
    core: seconds of CPU that the server's processes used a second.
    p50_ms, p99_ms: added to tokens sent while all clients were streaming.
    p99_with_start_ms: of all tokens, those included that waited while the requests of all clients,
        which come at once, were tokenized.
    """

    clients: int
    rate: float
    tokens: int
    tokens_per_s: float
    core: float
    tokens_per_core_s: float
    p50_ms: float
    p99_ms: float
    p99_with_start_ms: float


class Client:
    """One chat, read as raw bytes: when each token came."""

    def __init__(self, name: str, tokens: int, port: int, stream: bool = True) -> None:
        self.name, self.left = name, tokens
        self.came: list[tuple[float, int]] = []  # time, tokens
        self.socket = socket.create_connection(("127.0.0.1", port))
        body = json.dumps(
            {
                "model": MODEL,
                "messages": [{"role": "user", "content": "hi"}],
                "stream": stream,
                "max_tokens": tokens,
                "ignore_eos": True,
            }
        )
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nX-Request-Id: {name}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.socket.sendall((head + body).encode())


def read_all(clients: list[Client]) -> None:
    """Reads until every client has all its tokens. Bare epoll, for asyncio would cost more than
    what is measured."""
    epoll, by_fd = select.epoll(), {client.socket.fileno(): client for client in clients}
    for fd in by_fd:
        epoll.register(fd, select.EPOLLIN)
    open_now = len(clients)
    while open_now:
        for fd, _ in epoll.poll():  # it waits: the engine needs the core too
            client = by_fd[fd]
            data = client.socket.recv(1 << 16)
            if found := data.count(TOKEN):
                client.came.append((time.monotonic(), found))
                client.left -= found
            if not data:
                assert client.left == 0, f"{client.name} lacks {client.left} tokens"
                epoll.unregister(fd)
                open_now -= 1


def start_server(
    folder: str, steps_per_s: float, workers: int
) -> tuple[subprocess.Popen[str], int]:
    environment = os.environ | {
        "FAKE_STEPS_PER_S": str(steps_per_s),
        "FAKE_LOG": f"{folder}/log.json",
        "FAKE_CORES": str(CORES[-1]),
    }
    cores = CORES[:1] if workers == 1 else CORES
    command = [sys.executable, "-m", "bench.server.frontend", "--serve", *map(str, cores)]
    command += ["--api-workers", str(workers)]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline().rpartition(":")[2])


def serve(workers: int, cores: list[int]) -> None:
    """Args: cores: not those of the parent, the clients."""
    from functools import partial

    from jaxserve.config import EngineConfig, ServerConfig
    from jaxserve.engine.frontend.client import EngineClient
    from jaxserve.server.processes import lifecycle

    EngineClient.start = partial(EngineClient.start, module="tests.fake_engine")  # type: ignore[method-assign]
    os.sched_setaffinity(0, cores)
    config = ServerConfig(port=0, access_log=False, api_workers=workers)
    asyncio.run(
        lifecycle.serve(EngineConfig(MODEL), config, lambda url, *_: print(url, flush=True))
    )


def cpu_seconds(server: int) -> float:
    """Of the server's processes; the engine isn't one of them."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    ticks = 0
    for pid in (server, *children):
        if "fake_engine" not in Path(f"/proc/{pid}/cmdline").read_text():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def run_clients(port: int, clients: int, tokens: int, pid: int) -> tuple[list[Client], float]:
    """The clients, done, and the seconds of CPU that the server used meanwhile."""
    before = cpu_seconds(pid)
    made = [Client(f"c{i}", tokens, port) for i in range(clients)]
    read_all(made)
    used = cpu_seconds(pid) - before
    for client in made:
        client.socket.close()
    return made, used


def measure(clients: int, rate: float, seconds: float, workers: int) -> Figures:
    """Args: rate: tokens a second of all clients together; 0 is no limit."""
    steps_per_s = rate / clients
    tokens = int((rate or 40_000) * seconds / clients)
    tokens = max(16, min(tokens, 8_000))
    with tempfile.TemporaryDirectory() as folder:
        server, port = start_server(folder, steps_per_s, workers)
        try:
            run_clients(port, min(clients, 8), 16, server.pid)  # warms up
            made, cpu = run_clients(port, clients, tokens, server.pid)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
        sent = json.loads(Path(folder, "log.json").read_text())["sent"]
    # The warm-up's requests have the same names; the last of a name is the measured one.
    by_name = {request_id.partition("-")[2]: times for request_id, times in sent.items()}
    all_there = max(client.came[0][0] for client in made)
    late, with_start = [], []
    for client in made:
        came = [at for at, found in client.came for _ in range(found)]
        for at, there in zip(by_name[client.name], came, strict=True):
            with_start.append(there - at)
            if at >= all_there:
                late.append(there - at)
    late = late or with_start  # an engine without a limit may be done before all have begun
    begin = min(client.came[0][0] for client in made)
    end = max(client.came[-1][0] for client in made)
    total = clients * tokens
    return Figures(
        clients,
        rate,
        total,
        round(total / (end - begin)),
        round(cpu / (end - begin), 3),
        round(total / cpu),
        *(round(share * 1000, 2) for share in (median(late), p99(late), p99(with_start))),
    )


def p99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


def leave(port: int, clients: int) -> dict[str, float]:
    """When each client left, by name."""
    left = {}
    made = [Client(f"l{i}", 8_000, port, stream=i % 2 == 0) for i in range(clients)]
    time.sleep(1.0)
    for client in made:
        left[client.name] = time.monotonic()
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.socket.close()
        time.sleep(0.01)
    time.sleep(0.5)
    return left


def measure_leaving(clients: int, rate: float, workers: int) -> dict[str, float]:
    """How long after its client left a request is aborted, in ms."""
    with tempfile.TemporaryDirectory() as folder:
        server, port = start_server(folder, rate / clients, workers)
        try:
            left = leave(port, clients)
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
    parser.add_argument("--api-workers", type=int, default=1, help="processes of the server")
    parser.add_argument("--serve", type=int, nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.api_workers, args.serve)
        return
    os.sched_setaffinity(0, {CORES[-1]})
    gc.disable()  # the clients' pauses are no latency of the server
    print("clients  asked tok/s  tok/s  core  tok/core-s  added p50 ms  p99 ms")
    found = []
    for clients in args.clients:
        for rate in (0.0, args.rate):
            f = measure(clients, rate, args.seconds, args.api_workers)
            found.append(asdict(f))
            asked = "all" if not rate else f"{rate:.0f}"
            print(
                f"{clients:7}  {asked:>11}  {f.tokens_per_s:5}  {f.core:4.2f}  "
                f"{f.tokens_per_core_s:10}  {f.p50_ms:12}  {f.p99_ms:6}",
                flush=True,
            )
    leaving = measure_leaving(200, args.rate, args.api_workers)
    print(f"leaving: {leaving}")
    workers = {"api_workers": args.api_workers}
    print(json.dumps({"frontend": found, "leaving": leaving} | workers))


if __name__ == "__main__":
    main()
