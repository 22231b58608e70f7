"""A server process that joins another one's engine; see crew.py."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import msgspec

from jaxserve.engine.client import EngineClient
from jaxserve.errors import EngineDeadError
from jaxserve.server import crew
from jaxserve.server.lifecycle import SIGNALS, Doors, Stop, bound_socket, until_stopped
from jaxserve.server.peers import Peers
from jaxserve.server.records import log_to_stderr


async def work(order: crew.Order) -> None:
    """Serves until it is told to stop or the first process is gone.

    Raises:
        EngineDeadError: the engine process died.
    """
    stop, ended = Stop(), asyncio.get_running_loop().create_future()
    listening = asyncio.create_task(_listen(stop, ended))
    doors = Doors.of(order.server)
    folder = Path(order.folder)
    client = await EngineClient.attach(
        order.engine, folder, order.number, lambda: asyncio.shield(ended)
    )
    doors.use_template(client)
    peers = Peers(folder, order.number, order.server.api_workers)
    with bound_socket(order.server, order.port) as sock:
        async with doors.open(client, sock, peers, order.created) as (serving, site):
            sys.stdout.buffer.write(crew.READY)
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
        if words[0] == crew.STOP.encode():
            stop.signal()
        elif words[0] == crew.DEAD.encode() and not ended.done():
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
        order = msgspec.json.decode(lines.readline(), type=crew.Order)
    try:
        asyncio.run(work(order))
    except EngineDeadError as error:
        print(f"jaxserve: server process {order.number}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
