"""A server process that joins another one's engine; see api_processes.py."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import msgspec

from jaxserve.engine.frontend.client import EngineClient
from jaxserve.errors import EngineDeadError
from jaxserve.server.observability.request_log import log_to_stderr
from jaxserve.server.observability.worker_stats import WorkerStats
from jaxserve.server.processes import api_processes
from jaxserve.server.processes.lifecycle import (
    SIGNALS,
    ServerSetup,
    Stop,
    bound_socket,
    until_stopped,
)


async def work(order: api_processes.Order) -> None:
    """Serves until it is told to stop or the first process is gone.

    Raises:
        EngineDeadError: the engine process died.
    """
    stop, ended = Stop(), asyncio.get_running_loop().create_future()
    listening = asyncio.create_task(_listen(stop, ended))
    doors = ServerSetup.of(order.server)
    folder = Path(order.folder)
    client = await EngineClient.attach(
        order.engine, folder, order.number, lambda: asyncio.shield(ended)
    )
    doors.use_template(client)
    peers = WorkerStats(folder, order.number, order.server.api_workers)
    with bound_socket(order.server, order.port) as sock:
        async with doors.open(client, sock, peers, order.created) as (serving, site):
            sys.stdout.buffer.write(api_processes.READY)
            sys.stdout.flush()
            failure = await until_stopped(serving, site, stop)
    listening.cancel()
    if failure is not None:
        raise EngineDeadError(failure)


async def _listen(stop: Stop, ended: asyncio.Future[int]) -> None:
    """Does what the first process says; its silence for ever is a stop at once."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while words := (await reader.readline()).split():
        if words[0] == api_processes.STOP.encode():
            stop.signal()
        elif words[0] == api_processes.DEAD.encode() and not ended.done():
            ended.set_result(int(words[1]))
    stop.signal()
    stop.signal()


def main() -> int:
    # Ctrl-C and a service manager's SIGTERM reach the whole group; the first process decides.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    log_to_stderr()
    # Unbuffered: the lines after the first are for the event loop.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as lines:
        order = msgspec.json.decode(lines.readline(), type=api_processes.Order)
    try:
        asyncio.run(work(order))
    except EngineDeadError as error:
        print(f"jaxserve: server process {order.number}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
