"""Who may come in, and how to empty the house."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from jaxserve.server.wire.errors import unavailable


class Admission:
    """Counts the requests in flight, and lets in no more once it is closed."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Raises ApiError 503 when closed."""
        if self.closed:
            error = unavailable("the server is shutting down", "shutting_down")
            error.headers["Connection"] = "close"
            raise error
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    def close(self) -> None:
        self.closed = True

    async def wait_idle(self) -> None:
        await self._idle.wait()
