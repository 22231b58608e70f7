"""Malformed bodies and floods of headers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections import Counter
from typing import Any

import aiohttp

from bench.common.server_process import ServerProcess
from bench.server import demo_server
from bench.server.demo_server import MODEL, until_idle

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


def mutated(value: Any, draws: random.Random) -> Any:
    """A JSON value in which one part is left out, renamed or replaced."""
    if isinstance(value, dict) and value and draws.random() < 0.8:
        value = dict(value)
        name = draws.choice(list(value))
        match draws.randrange(4):
            case 0:
                del value[name]
            case 1:
                value[name + draws.choice(("", "_", "\u202e"))] = draws.choice(ODD)
            case _:
                value[name] = mutated(value[name], draws)
        return value
    if isinstance(value, list) and value and draws.random() < 0.8:
        at = draws.randrange(len(value))
        return [*value[:at], mutated(value[at], draws), *value[at + 1 :]]
    return draws.choice(ODD)


def malformed(draws: random.Random) -> tuple[str, bytes]:
    """A path and a body for it, changed at random."""
    path, body = draws.choice(SEEDS)
    if draws.random() < 0.7:
        for _ in range(draws.randint(1, 3)):
            body = mutated(body, draws)
        limit = "max_output_tokens" if path.endswith("responses") else "max_tokens"
        if isinstance(body, dict) and body.get(limit) is None:
            body = body | {limit: 1}  # without it a valid one would run to the context's end
        return path, json.dumps(body).encode("utf-8", "replace")
    data = bytearray(json.dumps(body).encode())
    for _ in range(draws.randint(1, 8)):
        data[draws.randrange(len(data))] = draws.randrange(256)
    return path, bytes(data[: draws.randint(0, len(data))])


async def bodies(server: ServerProcess, http: aiohttp.ClientSession) -> dict[str, Any]:
    """10,000 malformed bodies: each is answered 4xx, or 200 if it happens to be valid."""
    statuses: Counter[int] = Counter()
    draws = random.Random(0)
    cases = iter([malformed(draws) for _ in range(10_000)])
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
    counts = {f"answered_{status}": count for status, count in sorted(statuses.items())}
    return counts | {"duration_s": round(seconds, 1)}


async def headers(server: ServerProcess, http: aiohttp.ClientSession) -> dict[str, Any]:
    """Many, large, incomplete and binary headers; then 2,000 connections with half a request."""

    async def answer(data: bytes) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
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
        "100000_headers": await answer(many),
        "header_of_1_mib": await answer(begin + b"X: " + b"y" * 2**20 + b"\r\n\r\n"),
        "target_of_1_mib": await answer(b"GET /" + b"y" * 2**20 + b" HTTP/1.1\r\n\r\n"),
        "binary": await answer(b"\x16\x03\x01" + os.urandom(500)),
    }
    assert all(status in (0, 400, 413, 431) for status in statuses.values()), statuses
    idle = []
    for _ in range(2000):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        except OSError:
            break
        writer.write(begin)
        idle.append(writer)
    times = []
    for _ in range(20):
        at = time.monotonic()
        async with (
            demo_server.session(server.url) as fresh,
            fresh.get("/health") as response,
        ):
            assert response.status == 200
        times.append(time.monotonic() - at)
    for writer in idle:
        writer.close()
    return {
        "status_of": statuses,
        "half_requests_held_open": len(idle),
        "health_max_ms": round(max(times) * 1000, 1),
    }
