"""The engine's own reports, read without a request to the server."""

from __future__ import annotations

import asyncio
import itertools
import time

import zmq
import zmq.asyncio

from bench.common.server_process import ENGINE_MODULE, ServerProcess, command_line
from jaxserve.engine.core import protocol

_numbers = itertools.count(1000)  # of clients; the server's own are small


class EngineReports:
    """A further client of the server's engine, which receives every report that the server does.
    Asking the server instead would delay what is measured."""

    def __init__(self, server: ServerProcess) -> None:
        command = command_line(server.engine_pid)
        folder = command[command.index(ENGINE_MODULE) + 1]
        context = zmq.asyncio.Context.instance()
        self._inbox, self._outbox = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        self._number = next(_numbers)
        self._inbox.bind(protocol.client_address(folder, self._number))
        self._outbox.connect(protocol.engine_address(folder))

    async def __aenter__(self) -> EngineReports:
        await self._outbox.send(protocol.encode(protocol.Attach(self._number)))
        for _ in range(2):  # Fetched and Ready
            await self._inbox.recv()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._outbox.send(protocol.encode(protocol.Detach(self._number)))
        self._inbox.close(linger=0)
        self._outbox.close(linger=1000)

    async def until(self, idle: bool) -> float:
        """Waits for the next report of an idle engine (no request runs or waits and no block is
        held), or of a busy one; returns when it came, by time.monotonic()."""
        async with asyncio.timeout(60):
            while True:
                report = protocol.decode_to_client(await self._inbox.recv())
                assert isinstance(report, protocol.Outputs)
                now = report.stats.scheduler
                if idle is not any((now.running, now.waiting, now.blocks_used)):
                    return time.monotonic()
