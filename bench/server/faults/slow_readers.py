"""Clients that never read what they asked for."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any

import aiohttp

from bench.common.server_client import scrape
from bench.common.server_process import ServerProcess
from bench.server.demo_server import LONG, until_idle

RUNNING = "vllm:num_requests_running"


def raw_request(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data


async def slow(server: ServerProcess, http: aiohttp.ClientSession) -> dict[str, Any]:
    """20 streaming clients that never read, so that their sockets fill: other requests are answered
    as before."""

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
        sock.connect(("127.0.0.1", server.port))
        sock.sendall(raw_request("/v1/completions", body))
        stalled.append(sock)
    while (await scrape(http)).total(RUNNING) < 20:
        await asyncio.sleep(0.05)
    # The engine completes them, though nobody reads.
    beside = await short()
    while (await scrape(http)).total(RUNNING):
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
