"""ClientSockets: sends messages from the engine process to its clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import zmq

from jaxserve.engine.core import protocol


class ClientSockets:
    """A socket to each client.

    Args:
        folder: where the sockets are.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], folder: Path) -> None:
        self._context, self._folder = context, folder
        self._sockets: dict[int, zmq.Socket[bytes]] = {}
        self._removed: set[int] = set()
        self.add(0)

    def add(self, client: int) -> None:
        """Connects to a client, unless it was removed before: the message that it has died may come
        first."""
        if client in self._removed:
            return
        socket = self._sockets[client] = self._context.socket(zmq.PUSH)
        socket.set(zmq.SNDHWM, 0)
        socket.connect(protocol.client_address(self._folder, client))

    def remove(self, client: int) -> None:
        """Disconnects from a client, for good."""
        self._removed.add(client)
        if (socket := self._sockets.pop(client, None)) is not None:
            socket.close(linger=0)

    def __contains__(self, client: int) -> bool:
        return client in self._sockets

    def send(self, message: protocol.ToClient, client: int = 0) -> None:
        self._sockets[client].send(protocol.encode(message))

    def send_several(self, message: protocol.ToClient, clients: Iterable[int]) -> None:
        """Sends several clients the same message."""
        data = protocol.encode(message)
        for client in clients:
            self._sockets[client].send(data)

    def send_to_all(self, message: protocol.ToClient) -> None:
        """Sends all clients the same message."""
        self.send_several(message, self._sockets)

    def send_outputs(self, outputs: Sequence[protocol.Output], stats: protocol.EngineStats) -> None:
        """Sends each client the outputs of its own requests, and the figures to all of them."""
        if len(self._sockets) == 1:
            self.send(protocol.Outputs(list(outputs), stats))
            return
        own: dict[int, list[protocol.Output]] = {client: [] for client in self._sockets}
        for output in outputs:
            if (theirs := own.get(protocol.client_of(output.request_id))) is not None:
                theirs.append(output)
        for client, theirs in own.items():
            self.send(protocol.Outputs(theirs, stats), client)
            stats = msgspec.structs.replace(stats, step_s=None, step_tokens=0)
