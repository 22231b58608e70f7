"""Further server processes in front of one engine (--api-workers): start, messages and end.

The first process starts the engine and these processes. All of them listen on the same port with
SO_REUSEPORT, so that the kernel distributes connections, and each is a client of the engine. The
first process sends messages to the others on their standard input, one a line. End of file there
means that the first process has ended, and they stop immediately.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import msgspec

from jaxserve.config import EngineConfig, ServerConfig
from jaxserve.engine.frontend.client import EngineClient
from jaxserve.errors import EngineDeadError

READY = b"ready\n"
STOP = "stop"  # a second one means an immediate stop
ENGINE_DEAD = "engine_dead"  # followed by the engine's exit status
STOP_TIMEOUT_S = 5.0  # after an immediate stop; then a process is killed


class WorkerSettings(msgspec.Struct, frozen=True):
    """What a server process is started with: the first line of its standard input.

    Args:
        folder: where the engine's sockets are.
        number: from 1; the first process is 0.
        port: where the first process listens.
        created: when the model was ready, in Unix seconds.
    """

    engine: EngineConfig
    server: ServerConfig
    folder: str
    number: int
    port: int
    created: int


@dataclass(frozen=True, slots=True)
class ApiProcesses:
    """The server processes but the first; empty for a server of one process."""

    processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        client: EngineClient,
        server: ServerConfig,
        port: int,
        created: int,
        stop_requested: asyncio.Event,
    ) -> AsyncIterator[ApiProcesses]:
        """Starts them, and waits until they listen; ends them at the end of the context.

        Args:
            client: the first process's.
            stop_requested: set when the server is to stop. A service manager may then have stopped
                these processes, too, so that their end is no error.

        Raises:
            EngineDeadError: one of them can't start, or the engine died meanwhile; their own
                messages say why.
        """
        started, engine_dead = cls(), asyncio.create_task(client.wait_dead())
        try:
            for number in range(1, server.api_workers):
                settings = WorkerSettings(
                    client.config, server, str(client.folder), number, port, created
                )
                started.processes.append(await _start_process(settings))
            ready = asyncio.create_task(started._wait_ready(stop_requested))
            try:
                await asyncio.wait({ready, engine_dead}, return_when=asyncio.FIRST_COMPLETED)
                if not ready.done():
                    started.send(f"{ENGINE_DEAD} {client.exit_status}")
                    raise EngineDeadError("the engine process died; its own messages are above")
                ready.result()
            finally:
                ready.cancel()
            yield started
        finally:
            engine_dead.cancel()
            await started._end()

    def send(self, message: str) -> None:
        for process in self.processes:
            assert process.stdin is not None
            with suppress(ConnectionError):
                process.stdin.write(f"{message}\n".encode())

    async def wait_any_ended(self) -> None:
        """Returns once one of them has ended; never, if there are none."""
        waits = [asyncio.ensure_future(process.wait()) for process in self.processes]
        try:
            await asyncio.wait(waits or [asyncio.Future()], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def wait_all_ended(self) -> None:
        for process in self.processes:
            await process.wait()

    async def detach_ended(self, client: EngineClient) -> None:
        """Whenever one of them has ended, has the engine abort its requests."""

        async def detach(number: int, process: asyncio.subprocess.Process) -> None:
            await process.wait()
            client.detach(number)

        await asyncio.gather(*(detach(*item) for item in enumerate(self.processes, 1)))

    async def _wait_ready(self, stop_requested: asyncio.Event) -> None:
        for process in self.processes:
            assert process.stdout is not None
            if await process.stdout.readline() != READY and not stop_requested.is_set():
                raise EngineDeadError(
                    f"a server process ended with status {await process.wait()} before it was "
                    "ready; its messages are above"
                )

    async def _end(self) -> None:
        for _ in range(2):
            self.send(STOP)
        try:
            await asyncio.wait_for(self.wait_all_ended(), STOP_TIMEOUT_S)
        except TimeoutError:
            for process in self.processes:
                with suppress(ProcessLookupError):
                    process.kill()
            await self.wait_all_ended()


async def _start_process(settings: WorkerSettings) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "jaxserve.server.processes.api_worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(settings) + b"\n")
    return process
