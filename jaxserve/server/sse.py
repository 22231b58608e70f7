"""Server-sent events, OpenAI's way: one `data:` line of JSON an event, then `data: [DONE]`."""

from __future__ import annotations

from types import TracebackType

import msgspec
from aiohttp import web

from jaxserve.server.errors import as_api_error

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # nginx would hold events back otherwise.
    "X-Accel-Buffering": "no",
}


class EventStream:
    """A response that is sent event by event.

    As a context manager it decides what becomes of an exception: before the first event it goes
    on, so that the client gets a status code; after it, the client gets an error event and the
    stream ends without [DONE].
    """

    def __init__(self, request: web.Request) -> None:
        self.response = web.StreamResponse(headers=_HEADERS)
        self._request = request
        self._encoder = msgspec.json.Encoder()

    async def send(self, *messages: msgspec.Struct) -> None:
        """Writes the events at once; waits while the reader's socket is full."""
        if not messages:
            return
        events = (b"data: %b\n\n" % self._encoder.encode(message) for message in messages)
        await self._write(b"".join(events))

    async def done(self) -> None:
        await self._write(b"data: [DONE]\n\n")
        await self.response.write_eof()

    async def _write(self, data: bytes) -> None:
        if not self.response.prepared:
            await self.response.prepare(self._request)
        await self.response.write(data)

    async def __aenter__(self) -> EventStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, ConnectionError):
            return False  # No error, or nobody there to be told.
        if not self.response.prepared:
            return False
        await self._write(b"data: %b\n\n" % as_api_error(error).body())
        await self.response.write_eof()
        return True
