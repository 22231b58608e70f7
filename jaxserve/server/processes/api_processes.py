"""Further server processes in front of one engine (--api-workers): started, told and ended.

The first process starts the engine and this crew. Each listens on the same port (SO_REUSEPORT:
the kernel deals connections out), and speaks to the engine itself, as a client of its own. What
the first one has to say comes on their standard input, a word a line; its end is theirs too.
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
STOP, DEAD = "stop", "dead"
PATIENCE_S = 5.0  # for a process that was told to stop at once


class Order(msgspec.Struct, frozen=True):
    """What a server process is started with: the first line of its input.

    Args:
        folder: the first client's.
        number: from 1 on.
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
    """The processes; none of them in a server of one process."""

    processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def of(
        cls,
        client: EngineClient,
        server: ServerConfig,
        port: int,
        created: int,
        stopping: asyncio.Event,
    ) -> AsyncIterator[ApiProcesses]:
        """All `server.api_workers` but the first, listening; ended afterwards.

        Args:
            client: the first process's.
            stopping: set once the server is to stop: whoever stops it may have ended them too.

        Raises:
            EngineDeadError: one can't start, or the engine died meanwhile; their own messages say
                why.
        """
        crew, dead = cls(), asyncio.create_task(client.wait_dead())
        try:
            for number in range(1, server.api_workers):
                order = Order(client.config, server, str(client.folder), number, port, created)
                crew.processes.append(await _start(order))
            ready = asyncio.create_task(crew._wait_ready(stopping))
            try:
                await asyncio.wait({ready, dead}, return_when=asyncio.FIRST_COMPLETED)
                if not ready.done():
                    crew.tell(f"{DEAD} {client.exit_status}")
                    raise EngineDeadError("the engine process died; its own messages are above")
                ready.result()
            finally:
                ready.cancel()
            yield crew
        finally:
            dead.cancel()
            await crew._end()

    def tell(self, word: str) -> None:
        for process in self.processes:
            assert process.stdin is not None
            with suppress(ConnectionError):
                process.stdin.write(f"{word}\n".encode())

    async def wait_one(self) -> None:
        """Returns once one of them has ended; never, if there are none."""
        waits = [asyncio.ensure_future(process.wait()) for process in self.processes]
        try:
            await asyncio.wait(waits or [asyncio.Future()], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def detach_ended(self, client: EngineClient) -> None:
        """Has the engine forget what each of them, once it has ended, still wanted."""

        async def detach(number: int, process: asyncio.subprocess.Process) -> None:
            await process.wait()
            client.detach(number)

        await asyncio.gather(*(detach(*one) for one in enumerate(self.processes, 1)))

    async def wait_all(self) -> None:
        for process in self.processes:
            await process.wait()

    async def _wait_ready(self, stopping: asyncio.Event) -> None:
        for process in self.processes:
            assert process.stdout is not None
            if await process.stdout.readline() != READY and not stopping.is_set():
                raise EngineDeadError(
                    f"a server process ended with status {await process.wait()} before it was "
                    "ready; its messages are above"
                )

    async def _end(self) -> None:
        for _ in range(2):  # the second time is at once
            self.tell(STOP)
        try:
            await asyncio.wait_for(self.wait_all(), PATIENCE_S)
        except TimeoutError:
            for process in self.processes:
                with suppress(ProcessLookupError):
                    process.kill()
            await self.wait_all()


async def _start(order: Order) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "jaxserve.server.processes.api_worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(order) + b"\n")
    return process
