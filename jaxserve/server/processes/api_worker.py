"""The main program of a further server process; see api_processes.py."""

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
from jaxserve.server.processes.api_processes import ENGINE_DEAD, READY, STOP, WorkerSettings
from jaxserve.server.processes.listening_socket import bound_socket
from jaxserve.server.processes.server_setup import ServerSetup
from jaxserve.server.processes.shutdown import SIGNALS, StopRequest, serve_until_stopped


async def run_worker(settings: WorkerSettings) -> None:
    """Serves until the first process sends a stop or has ended.

    Raises:
        EngineDeadError: the engine process died.
    """
    stop, engine_ended = StopRequest(), asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(_read_messages(stop, engine_ended))
    setup = ServerSetup.of(settings.server)
    folder = Path(settings.folder)
    client = await EngineClient.attach(
        settings.engine, folder, settings.number, lambda: asyncio.shield(engine_ended)
    )
    setup.set_chat_template(client)
    workers = WorkerStats(folder, settings.number, settings.server.api_workers)
    with bound_socket(settings.server, settings.port) as sock:
        async with setup.listen(client, sock, workers, settings.created) as (context, site):
            sys.stdout.buffer.write(READY)
            sys.stdout.flush()
            failure = await serve_until_stopped(context, site, stop)
    reading.cancel()
    if failure is not None:
        raise EngineDeadError(failure)


async def _read_messages(stop: StopRequest, engine_ended: asyncio.Future[int]) -> None:
    """Handles the first process's messages; end of file on stdin means stop immediately."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while words := (await reader.readline()).split():
        if words[0] == STOP.encode():
            stop.signal()
        elif words[0] == ENGINE_DEAD.encode() and not engine_ended.done():
            engine_ended.set_result(int(words[1]))
    for _ in range(2):
        stop.signal()


def main() -> int:
    # Ctrl-C and a service manager's SIGTERM reach the whole process group. The first process
    # handles them, and sends this one a stop.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    log_to_stderr()
    # Unbuffered: the lines after the first are read by the event loop.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as lines:
        settings = msgspec.json.decode(lines.readline(), type=WorkerSettings)
    try:
        asyncio.run(run_worker(settings))
    except EngineDeadError as error:
        print(f"jaxserve: server process {settings.number}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
