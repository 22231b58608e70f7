"""Counts requests in flight; refuses new ones while the server drains."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from jaxserve.server.wire.errors import unavailable


class Admission:
    """Counts the requests in flight; once it is closed, refuses new ones."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Counts a request while the context is open; raises ApiError 503 if closed."""
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
