"""The server process by itself: tokens a second that it streams, and the latency that it adds. The
engine process is tests/fake_engine.py, which speaks the real protocol and computes nothing:

    python -m bench.server.frontend [--clients 1 64 512] [--rate 20000] [--seconds 5]
        [--api-workers 1]

Two runs for each number of clients: the engine as fast as it can (throughput), and at --rate tokens
a second of all clients together (latency added to a token: from the engine's send to the client's
read). The clients are one process, the engine another. On two cores a server of one process has one
core to itself, and clients and engine share the other; a server of several processes shares both
cores with them, so that its figures say little about a machine with more cores. The last line is
one flat JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import select
import socket
import struct
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bench.common.figures import Figures, print_figures
from bench.common.server_process import ServerProcess, command_line

FAKE_ENGINE = "tests.fake_engine"
TOKEN = b"~"
MODEL = "smollm2-135m"  # the fake engine uses its tokenizer alone
CORES = sorted(os.sched_getaffinity(0))


@dataclass
class Run:
    """What one run showed.

    Args:
        cores: seconds of processor time that the server's processes used a second.
        added_p50_ms, added_p99_ms: latency added to the tokens sent while all clients streamed.
        added_p99_with_start_ms: to all tokens, including those that waited while the requests of
            all clients, which come together, were tokenized.
    """

    tokens: int
    tokens_per_s: float
    cores: float
    tokens_per_core_s: float
    added_p50_ms: float
    added_p99_ms: float
    added_p99_with_start_ms: float


class Client:
    """One chat request whose answer is read as raw bytes, with the time of each token."""

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
    """Reads until every client has all its tokens. It uses epoll and counts token bytes, because
    asyncio and parsing events would cost more than what is measured."""
    epoll, by_fd = select.epoll(), {client.socket.fileno(): client for client in clients}
    for fd in by_fd:
        epoll.register(fd, select.EPOLLIN)
    open_now = len(clients)
    while open_now:
        for fd, _ in epoll.poll():  # blocks, and so leaves the core to the engine
            client = by_fd[fd]
            data = client.socket.recv(1 << 16)
            if found := data.count(TOKEN):
                client.came.append((time.monotonic(), found))
                client.left -= found
            if not data:
                assert client.left == 0, f"{client.name} lacks {client.left} tokens"
                epoll.unregister(fd)
                open_now -= 1


def start_server(folder: str, steps_per_s: float, workers: int) -> ServerProcess:
    """A server whose fake engine writes its log into the folder."""
    cores = CORES[:1] if workers == 1 else CORES
    command = [sys.executable, "-m", "bench.server.frontend", "--serve", *map(str, cores)]
    command += ["--api-workers", str(workers), "--port"]
    environment = {
        "FAKE_STEPS_PER_S": str(steps_per_s),
        "FAKE_LOG": f"{folder}/log.json",
        "FAKE_CORES": str(CORES[-1]),
    }
    return ServerProcess(lambda port: [*command, str(port)], environment)


def serve(workers: int, cores: list[int], port: int) -> None:
    """What the server process runs.

    Args:
        cores: it may use.
    """
    from functools import partial

    from jaxserve.config import EngineConfig, ServerConfig
    from jaxserve.engine.frontend.client import EngineClient
    from jaxserve.server.processes import lifecycle

    EngineClient.start = partial(EngineClient.start, module=FAKE_ENGINE)  # type: ignore[method-assign]
    os.sched_setaffinity(0, cores)
    config = ServerConfig(port=port, access_log=False, api_workers=workers)
    asyncio.run(lifecycle.serve(EngineConfig(MODEL), config, lambda *_: None))


def cpu_seconds(server: ServerProcess) -> float:
    """Processor time of the server's processes, without the engine's."""
    ticks = 0
    for pid in server.family():
        if FAKE_ENGINE not in command_line(pid):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # utime, stime
    return ticks / os.sysconf("SC_CLK_TCK")


def run_clients(server: ServerProcess, clients: int, tokens: int) -> tuple[list[Client], float]:
    """The clients, done, and the seconds of processor time that the server used meanwhile."""
    before = cpu_seconds(server)
    made = [Client(f"c{i}", tokens, server.port) for i in range(clients)]
    read_all(made)
    used = cpu_seconds(server) - before
    for client in made:
        client.socket.close()
    return made, used


def measure(clients: int, rate: float, seconds: float, workers: int) -> Run:
    """Args: rate: tokens a second of all clients together; 0 is no limit."""
    steps_per_s = rate / clients
    tokens = int((rate or 40_000) * seconds / clients)
    tokens = max(16, min(tokens, 8_000))
    with tempfile.TemporaryDirectory() as folder:
        server = start_server(folder, steps_per_s, workers)
        try:
            run_clients(server, min(clients, 8), 16)  # warm-up
            made, cpu = run_clients(server, clients, tokens)
        finally:
            server.terminate()
            server.wait(30)
        sent = json.loads(Path(folder, "log.json").read_text())["sent"]
    # The warm-up's requests have the same names; the last request of a name is the measured one.
    by_name = {request_id.partition("-")[2]: times for request_id, times in sent.items()}
    all_begun = max(client.came[0][0] for client in made)
    added, with_start = [], []
    for client in made:
        came = [at for at, found in client.came for _ in range(found)]
        for sent_at, came_at in zip(by_name[client.name], came, strict=True):
            with_start.append(came_at - sent_at)
            if sent_at >= all_begun:
                added.append(came_at - sent_at)
    added = added or with_start  # a fast engine may be done before all clients have begun
    begin = min(client.came[0][0] for client in made)
    end = max(client.came[-1][0] for client in made)
    total = clients * tokens
    return Run(
        total,
        round(total / (end - begin)),
        round(cpu / (end - begin), 3),
        round(total / cpu),
        *(round(share * 1000, 2) for share in (median(added), p99(added), p99(with_start))),
    )


def p99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


def leave(port: int, clients: int) -> dict[str, float]:
    """When each client disconnected, by name."""
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


def measure_leaving(clients: int, rate: float, workers: int) -> Figures:
    """How long after its client has disconnected a request is aborted."""
    with tempfile.TemporaryDirectory() as folder:
        server = start_server(folder, rate / clients, workers)
        try:
            left = leave(server.port, clients)
        finally:
            server.terminate()
            server.wait(30)
        aborted = json.loads(Path(folder, "log.json").read_text())["aborted"]
    by_name = {request_id.partition("-")[2]: at for request_id, at in aborted.items()}
    assert by_name.keys() == left.keys()
    delays = sorted(by_name[name] - at for name, at in left.items())
    return {
        "abort_clients": clients,
        "abort_p50_ms": round(median(delays) * 1000, 2),
        "abort_max_ms": round(delays[-1] * 1000, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 64, 512])
    parser.add_argument("--rate", type=float, default=20_000, help="tokens a second (latency run)")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--api-workers", type=int, default=1, help="processes of the server")
    parser.add_argument("--serve", type=int, nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.api_workers, args.serve, args.port)
        return
    os.sched_setaffinity(0, {CORES[-1]})
    gc.disable()  # so that pauses of the clients don't count as the server's latency
    print("clients  asked tok/s  tok/s  cores  tok/core-s  added p50 ms  p99 ms")
    figures: Figures = {"api_workers": args.api_workers}
    for clients in args.clients:
        for rate in (0.0, args.rate):
            run = measure(clients, rate, args.seconds, args.api_workers)
            asked = f"{rate:.0f}" if rate else "unlimited"
            figures |= {f"{clients}_clients_{asked}_{k}": v for k, v in asdict(run).items()}
            print(
                f"{clients:7}  {asked:>11}  {run.tokens_per_s:5}  {run.cores:5.2f}  "
                f"{run.tokens_per_core_s:10}  {run.added_p50_ms:12}  {run.added_p99_ms:6}",
                flush=True,
            )
    leaving = measure_leaving(200, args.rate, args.api_workers)
    print(f"clients that disconnect: {leaving}")
    print_figures(figures | leaving)


if __name__ == "__main__":
    main()
