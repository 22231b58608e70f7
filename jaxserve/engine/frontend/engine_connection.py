"""EngineConnection: the sockets to an engine process, and the start and end of that process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import zmq
import zmq.asyncio

from jaxserve.engine.core import protocol
from jaxserve.errors import EngineDeadError, ModelError

ENGINE_MODULE = "jaxserve.engine.core.engine_process"
SHUTDOWN_S = 10.0  # how long the engine may take to end after a Shutdown


class EngineConnection:
    """A client's two sockets to an engine process, which may be a child of this process.

    Args:
        folder: where the engine's sockets are.
        number: this client's among the engine's clients; 0 is the one that starts the engine.
        wait_ended: waits for the engine's end; gives its exit status.
        process: the engine, if it is a child of this process. close() then removes `folder`.
    """

    def __init__(
        self,
        folder: Path,
        number: int,
        wait_ended: Callable[[], Awaitable[int]],
        process: asyncio.subprocess.Process | None = None,
    ) -> None:
        self.folder, self.number, self.process = folder, number, process
        self.wait_ended = wait_ended
        context = zmq.asyncio.Context.instance()
        self._to_engine, self._from_engine = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        self._to_engine.set(zmq.SNDHWM, 0)
        self._from_engine.set(zmq.RCVHWM, 0)
        self._blocking: zmq.Socket[bytes] = zmq.Socket.shadow(self._from_engine)

    @classmethod
    async def start_process(cls, module: str) -> EngineConnection:
        """Starts an engine process that runs `module`. The sockets aren't open yet."""
        folder = Path(tempfile.mkdtemp(prefix="jaxserve-"))  # mode 0700: for this user alone
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, str(folder), str(os.getpid())),
                start_new_session=True,  # so that kill() also ends what it has started
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return cls(folder, 0, process.wait, process)

    def open(self) -> None:
        """Opens the sockets.

        Raises:
            zmq.ZMQError: an address can't be used.
        """
        self._from_engine.bind(protocol.client_address(self.folder, self.number))
        self._to_engine.connect(protocol.engine_address(self.folder))

    def send(self, message: protocol.ToEngine) -> None:
        """Sends a message, or drops it if the engine has ended."""
        # Not awaited: if the engine has ended it would never return.
        self._to_engine.send(protocol.encode(message))

    async def receive(self) -> protocol.ToClient:
        """The engine's next message; waits for it."""
        return protocol.decode_to_client(await self._from_engine.recv())

    def receive_now(self) -> protocol.ToClient | None:
        """The engine's next message; None if there is none yet."""
        try:
            return protocol.decode_to_client(self._blocking.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None

    async def receive_at_start(self) -> protocol.ToClient:
        """The engine's next message while it starts; waits for it.

        Raises:
            ModelError: the engine says that it can't start.
            EngineDeadError: it ended without a message.
        """
        receive = asyncio.ensure_future(self.receive())
        ended = asyncio.ensure_future(self.wait_ended())
        await asyncio.wait({receive, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not receive.done():
            with contextlib.suppress(TimeoutError):  # its last message may still be on the way
                await asyncio.wait_for(asyncio.shield(receive), 1.0)
        ended.cancel()
        if not receive.done():
            receive.cancel()
            raise EngineDeadError(
                f"the engine process ended with status {await self.wait_ended()} before it was "
                "ready; its messages are above"
            )
        message = receive.result()
        if isinstance(message, protocol.Failed):
            raise ModelError(message.message)
        return message

    async def shut_down(self) -> None:
        """Ends the engine process, if it is a child of this process, and waits for its end."""
        if self.process is None:
            return
        self.send(protocol.Shutdown())
        try:
            await asyncio.wait_for(self.process.wait(), SHUTDOWN_S)
        except TimeoutError:
            self.kill()
            await self.process.wait()

    def kill(self) -> None:
        """Kills the engine process with all that it has started, if it is a child of this one."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Closes the sockets. The engine process must have ended, if it is a child of this one."""
        self._to_engine.close(linger=0)
        self._from_engine.close(linger=0)
        if self.process is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    async def abandon(self) -> None:
        """Closes a connection whose engine couldn't start."""
        self.kill()
        if self.process is not None:
            await self.process.wait()
        self.close()
