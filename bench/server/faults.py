"""Breaks a real server in every way that clients and machines do, and prints what it did:

    python -m bench.server.faults [--only kill leave ...]

Each part starts its own server of the demo model, 64 sequences at once. A part fails the whole
(exit status 1) if the server answers 5xx, hangs, keeps blocks, or dies when it should not. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import zmq
import zmq.asyncio

from jaxserve.engine.core import protocol

FLAGS = (
    *("--max-num-seqs", "64", "--max-num-batched-tokens", "128", "--max-model-len", "1024"),
    *("--kv-cache-memory", "512MiB", "--no-access-log", "--drain-timeout", "60"),
)
MODEL = "smollm2-135m"
LONG = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True}
LIMIT = aiohttp.ClientTimeout(total=300)
RANDOM = random.Random(0)


class Server:
    """`jaxserve serve` in a process of its own."""

    def __init__(self, *flags: str) -> None:
        command = [sys.executable, "-m", "jaxserve.cli.main", "serve", "--port", "0"]
        self.process = subprocess.Popen([*command, *FLAGS, *flags], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        self.url = re.search(r"http://\S+", line)[0]  # type: ignore[index]

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    @property
    def engine_pid(self) -> int:
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0])

    def wait(self) -> int:
        return self.process.wait(60)


class Readings:
    """What the engine says of itself, heard as a further client of it hears it: to ask the server
    would keep it from what is measured."""

    numbers = itertools.count(1000)

    def __init__(self, server: Server) -> None:
        command = Path(f"/proc/{server.engine_pid}/cmdline").read_text().split("\0")
        folder = command[command.index("jaxserve.engine.core.engine_process") + 1]
        context = zmq.asyncio.Context.instance()
        self._inbox, self._outbox = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        self._number = next(self.numbers)
        self._inbox.bind(protocol.from_engine(folder, self._number))
        self._outbox.connect(protocol.to_engine(folder))

    async def __aenter__(self) -> Readings:
        await self._outbox.send(protocol.encode(protocol.Attach(self._number)))
        for _ in range(2):  # Fetched and Ready
            await self._inbox.recv()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._outbox.send(protocol.encode(protocol.Detach(self._number)))
        self._inbox.close(linger=0)
        self._outbox.close(linger=1000)

    async def until(self, idle: bool) -> float:
        """The time (time.monotonic()) of the first reading from now on with nothing running,
        nothing waiting and no block held, or with something."""
        async with asyncio.timeout(60):
            while True:
                news = protocol.decode_to_client(await self._inbox.recv())
                assert isinstance(news, protocol.Outputs)
                now = news.stats.scheduler
                if idle is not any((now.running, now.waiting, now.blocks_used)):
                    return time.monotonic()


async def figure(http: aiohttp.ClientSession, name: str) -> float:
    """A metric's value."""
    async with http.get("/metrics") as response:
        text = await response.text()
    found = re.search(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    assert found, f"no metric {name}"
    return float(found[1])


async def until_idle(http: aiohttp.ClientSession, limit: float = 60.0) -> float:
    """Seconds until nothing runs, nothing waits and no block is held."""
    begin = time.monotonic()
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    while True:
        values = [await figure(http, f"vllm:{name}") for name in names]
        if not any(values):
            return time.monotonic() - begin
        assert time.monotonic() - begin < limit, f"still held: {values}"
        await asyncio.sleep(0.002)


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    async for line in response.content:
        if line.startswith(b"data: "):
            data = line.removeprefix(b"data: ").strip()
            yield "[DONE]" if data == b"[DONE]" else json.loads(data)


async def kill(server: Server, http: aiohttp.ClientSession) -> dict[str, Any]:
    """kill -9 of the engine during 50 streams."""
    begun = 0
    killed = 0.0

    async def stream() -> tuple[float, Any]:
        nonlocal begun
        async with http.post("/v1/completions", json=LONG | {"stream": True}) as response:
            last = None
            async for event in events(response):
                if last is None:
                    begun += 1
                last = event
        return time.monotonic() - killed, last

    async def health() -> Counter[int]:
        """What a probe is told until nobody answers."""
        told: Counter[int] = Counter()
        with contextlib.suppress(aiohttp.ClientConnectionError):
            while True:
                asked = time.monotonic()
                async with http.get("/health") as response:
                    told[response.status] += 1
                    assert response.status == 503 or asked - killed < 1.0, told
                await asyncio.sleep(0.01)
        return told

    streams = [asyncio.create_task(stream()) for _ in range(50)]
    while begun < 50:
        await asyncio.sleep(0.05)
    killed = time.monotonic()
    os.kill(server.engine_pid, signal.SIGKILL)
    told = await health()
    ends = await asyncio.gather(*streams)
    status = await asyncio.to_thread(server.wait)
    assert status != 0, "the server exited 0"
    assert told[503], "no probe heard of it"
    assert all(last["error"]["code"] == "engine_dead" for _, last in ends)
    return {
        "streams": len(ends),
        "last_error_event_ms": round(max(at for at, _ in ends) * 1000),
        "health": dict(told),
        "exit_status": status,
        "exit_s": round(time.monotonic() - killed, 2),
    }


async def leave(server: Server, http: aiohttp.ClientSession) -> dict[str, Any]:
    """200 clients that disconnect at random, streaming or not."""

    async def client() -> None:
        stream = RANDOM.random() < 0.5
        await asyncio.sleep(RANDOM.uniform(0, 5))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RANDOM.uniform(0.01, 3)):
                body = LONG | {"stream": stream, "n": RANDOM.choice((1, 1, 2))}
                async with http.post("/v1/completions", json=body) as response:
                    await response.read()

    await asyncio.gather(*(client() for _ in range(200)))
    seconds = await until_idle(http)
    return {"clients": 200, "blocks_zero_after_ms": round(seconds * 1000)}


async def abort(server: Server, http: aiohttp.ClientSession) -> dict[str, Any]:
    """How soon a client that left no longer runs, and its blocks are free."""
    found = {}
    for stream in (True, False):
        times = []
        async with Readings(server) as readings:
            for _ in range(20):
                asked = http.post("/v1/completions", json=LONG | {"stream": stream})
                task = asyncio.create_task(asked.__aenter__())
                await readings.until(idle=False)
                if stream:
                    response = await task
                    await anext(events(response))
                await asyncio.sleep(RANDOM.uniform(0.0, 0.3))  # at any point of a step
                left = time.monotonic()
                if stream:
                    response.close()
                else:
                    task.cancel()
                times.append(await readings.until(idle=True) - left)
        name = "streaming" if stream else "whole"
        found[f"{name}_max_ms"] = round(max(times) * 1000, 1)
        found[f"{name}_median_ms"] = round(sorted(times)[10] * 1000, 1)
        assert max(times) < 0.1, f"{name}: {times}"
    return found


async def stop(server: Server, http: aiohttp.ClientSession) -> dict[str, Any]:
    """SIGTERM under load: what runs finishes, what comes is refused, exit 0."""
    begun = 0

    async def stream() -> Any:
        nonlocal begun
        body = LONG | {"stream": True, "max_tokens": 40}
        async with http.post("/v1/completions", json=body) as response:
            last = None
            async for event in events(response):
                begun += last is None
                last = event
        return last

    streams = [asyncio.create_task(stream()) for _ in range(48)]
    while begun < 48:
        await asyncio.sleep(0.05)
    asked = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.2)
    refused = 0
    for _ in range(5):
        try:
            async with http.post("/v1/completions", json=LONG) as response:
                refused += response.status == 503
        except aiohttp.ClientConnectionError:
            refused += 1
    ends = await asyncio.gather(*streams)
    finished = sum(end == "[DONE]" for end in ends)
    status = await asyncio.to_thread(server.wait)
    assert (finished, refused, status) == (48, 5, 0), (finished, refused, status)
    return {"streams_finished": finished, "exit_s": round(time.monotonic() - asked, 2)}


SEEDS: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 1,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
            "tool_choice": "required",
            "logit_bias": {"5": 1},
            "reasoning_effort": None,
            "stream_options": None,
        },
    ),
    (
        "/v1/completions",
        {
            "model": MODEL,
            "prompt": ["a", "b"],
            "max_tokens": 1,
            "stop": ["x"],
            "logprobs": 2,
            "seed": 1,
            "echo": True,
            "n": 2,
        },
    ),
    (
        "/v1/responses",
        {
            "model": MODEL,
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
            "max_output_tokens": 1,
            "text": {"format": {"type": "text"}},
            "metadata": {"a": "b"},
        },
    ),
]
ODD: list[Any] = [
    *(None, True, -1, 0, 10**30, 1e308, -0.5, "", "x" * 3000, "\x00", "\ud7ff\uffff", [], {}, [[]]),
    *(
        [None],
        {"": None},
        {"type": "function"},
        [{"role": "tool"}],
        [1, "a"],
        {"5": 1e9},
        ["a"] * 200,
    ),
]


def mutated(value: Any) -> Any:
    """A JSON value with something wrong somewhere."""
    if isinstance(value, dict) and value and RANDOM.random() < 0.8:
        value = dict(value)
        name = RANDOM.choice(list(value))
        match RANDOM.randrange(4):
            case 0:
                del value[name]
            case 1:
                value[name + RANDOM.choice(("", "_", "\u202e"))] = RANDOM.choice(ODD)
            case _:
                value[name] = mutated(value[name])
        return value
    if isinstance(value, list) and value and RANDOM.random() < 0.8:
        at = RANDOM.randrange(len(value))
        return [*value[:at], mutated(value[at]), *value[at + 1 :]]
    return RANDOM.choice(ODD)


def malformed() -> tuple[str, bytes]:
    path, body = RANDOM.choice(SEEDS)
    if RANDOM.random() < 0.7:
        for _ in range(RANDOM.randint(1, 3)):
            body = mutated(body)
        limit = "max_output_tokens" if path.endswith("responses") else "max_tokens"
        if isinstance(body, dict) and body.get(limit) is None:
            body = body | {limit: 1}  # a good one goes on to the context's end without it
        return path, json.dumps(body).encode("utf-8", "replace")
    data = bytearray(json.dumps(body).encode())
    for _ in range(RANDOM.randint(1, 8)):
        data[RANDOM.randrange(len(data))] = RANDOM.randrange(256)
    return path, bytes(data[: RANDOM.randint(0, len(data))])


async def bodies(server: Server, http: aiohttp.ClientSession) -> dict[str, Any]:
    """10,000 malformed bodies: 4xx each, or 200 where one happens to be good."""
    statuses: Counter[int] = Counter()
    cases = iter([malformed() for _ in range(10_000)])
    begin = time.monotonic()

    async def client() -> None:
        for path, body in cases:
            headers = {"Content-Type": "application/json"}
            async with http.post(path, data=body, headers=headers) as response:
                answer = await response.json()
                statuses[response.status] += 1
                if response.status >= 400:
                    assert set(answer["error"]) == {"message", "type", "param", "code"}
                if response.status >= 500:
                    print(response.status, path, body[:500], answer, file=sys.stderr)

    await asyncio.gather(*(client() for _ in range(32)))
    seconds = time.monotonic() - begin
    assert not any(status >= 500 for status in statuses), statuses
    await until_idle(http)
    return {"statuses": {str(s): n for s, n in sorted(statuses.items())}, "s": round(seconds, 1)}


def raw_request(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data


async def slow(server: Server, http: aiohttp.ClientSession) -> dict[str, Any]:
    """20 readers that never read, with full sockets: others go on as before."""

    async def short() -> float:
        begin = time.monotonic()
        body = LONG | {"max_tokens": 8}
        async with http.post("/v1/completions", json=body) as response:
            assert response.status == 200
            await response.read()
        return time.monotonic() - begin

    async def median() -> float:
        return sorted([await short() for _ in range(9)])[4]

    alone = await median()
    stalled = []
    body = LONG | {"stream": True, "logprobs": 20, "max_tokens": 150, "n": 1}
    for _ in range(20):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.connect(server.address)
        sock.sendall(raw_request("/v1/completions", body))
        stalled.append(sock)
    while await figure(http, "vllm:num_requests_running") < 20:
        await asyncio.sleep(0.05)
    # The engine runs them to their ends, though nobody reads.
    beside = await short()
    while await figure(http, "vllm:num_requests_running"):
        await asyncio.sleep(0.2)
    after = await median()
    for sock in stalled:
        sock.close()
    await until_idle(http)
    assert after < 3 * alone + 0.2, (alone, after)
    return {
        "alone_ms": round(alone * 1000),
        "beside_20_running_ms": round(beside * 1000),
        "beside_20_full_sockets_ms": round(after * 1000),
    }


async def headers(server: Server, http: aiohttp.ClientSession) -> dict[str, Any]:
    """Header floods: many, large, endless and very slow ones."""

    async def answer(data: bytes) -> int:
        reader, writer = await asyncio.open_connection(*server.address)
        try:
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            line = await asyncio.wait_for(reader.readline(), 20)
            return int(line.split()[1]) if line else 0
        except ConnectionError:
            return 0
        finally:
            writer.close()

    begin = b"GET /health HTTP/1.1\r\nHost: x\r\n"
    many = begin + b"".join(b"X-%d: y\r\n" % i for i in range(100_000)) + b"\r\n"
    statuses = {
        "100,000 headers": await answer(many),
        "a header of 1 MiB": await answer(begin + b"X: " + b"y" * 2**20 + b"\r\n\r\n"),
        "a target of 1 MiB": await answer(b"GET /" + b"y" * 2**20 + b" HTTP/1.1\r\n\r\n"),
        "no HTTP": await answer(b"\x16\x03\x01" + os.urandom(500)),
    }
    assert all(status in (0, 400, 413, 431) for status in statuses.values()), statuses
    idle = []
    for _ in range(2000):
        try:
            _, writer = await asyncio.open_connection(*server.address)
        except OSError:
            break
        writer.write(begin)
        idle.append(writer)
    times = []
    for _ in range(20):
        at = time.monotonic()
        async with (
            aiohttp.ClientSession(server.url, timeout=LIMIT) as fresh,
            fresh.get("/health") as response,
        ):
            assert response.status == 200
        times.append(time.monotonic() - at)
    for writer in idle:
        writer.close()
    return {
        "statuses": statuses,
        "half_requests_held_open": len(idle),
        "health_max_ms": round(max(times) * 1000, 1),
    }


Part = Callable[[Server, aiohttp.ClientSession], Awaitable[dict[str, Any]]]
PARTS: tuple[Part, ...] = (abort, leave, bodies, slow, headers, kill, stop)


async def run(part: Part) -> dict[str, Any]:
    server = await asyncio.to_thread(Server)
    try:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(server.url, timeout=LIMIT, connector=connector) as http:
            return await part(server, http)
    finally:
        if server.process.poll() is None:
            server.process.terminate()
            server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [part.__name__ for part in PARTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    only = parser.parse_args().only
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    found: dict[str, Any] = {}
    failed = False
    for part in PARTS:
        if part.__name__ not in only:
            continue
        try:
            found[part.__name__] = asyncio.run(run(part))
        except Exception as error:
            failed = True
            found[part.__name__] = {"failed": repr(error)}
        print(f"{part.__name__}: {found[part.__name__]}", flush=True)
    print(json.dumps({"server_faults": found}))
    sys.exit(failed)


if __name__ == "__main__":
    main()
