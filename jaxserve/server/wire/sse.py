"""Server-sent events in OpenAI's form: a `data:` line of JSON each, then `data: [DONE]`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec
from aiohttp import web

from jaxserve.server.wire.errors import ApiError, as_api_error

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # Without it nginx buffers events.
    "X-Accel-Buffering": "no",
}
DONE = b"data: [DONE]\n\n"
IDLE_S, COMMENT = 15.0, b": more to come\n\n"
# A client that reads nothing for so long is disconnected; its request is aborted.
WRITE_TIMEOUT_S = 120.0
_encode_json = msgspec.json.Encoder().encode
# Some readers of lines break at these characters, which JSON may hold as they are: NEL, and
# Unicode's separators of lines and paragraphs.
_LINE_BREAKS = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)


def _encode(message: Any) -> bytes:
    """A message as JSON without any character that ends a line."""
    data = _encode_json(message)
    for character, escape in _LINE_BREAKS:
        if character in data:
            data = data.replace(character, escape)
    return data


def event(message: msgspec.Struct | dict[str, Any]) -> bytes:
    """A message as an event."""
    return b"data: %b\n\n" % _encode(message)


def named_event(name: str, message: msgspec.Struct | dict[str, Any]) -> bytes:
    """A message as an event with a name, as in the responses API."""
    return b"event: %b\n%b" % (name.encode(), event(message))


class TextEvent:
    """Encodes events that differ in one text only; the rest is encoded once.

    Args:
        message: such an event's message, with an empty text.
        field: name of the text's field; no other field of that name may be empty.
    """

    def __init__(self, message: msgspec.Struct, field: str) -> None:
        self._before, found, self._after = event(message).partition(b'"%b":""' % field.encode())
        assert found
        self._before += found[:-2]

    def __call__(self, text: str) -> bytes:
        return b"%b%b%b" % (self._before, _encode(text), self._after)


def error_event(error: ApiError) -> bytes:
    return event(error.envelope())


class EventStream:
    """A response that is sent event by event.

    As a context manager it handles exceptions. Before the first event they propagate, so that the
    client gets a status code. After it, the client gets an error event, and the stream ends.

    Args:
        on_error: encodes the error event.
        idle_s: after so many seconds without an event, the next empty write sends a comment, so
            that neither the client nor a proxy takes the stream for dead.
    """

    def __init__(
        self,
        request: web.Request,
        on_error: Callable[[ApiError], bytes] = error_event,
        idle_s: float = IDLE_S,
    ) -> None:
        self.response = web.StreamResponse(headers=_HEADERS)
        self._request = request
        self._on_error = on_error
        self._idle_s, self._written = idle_s, time.monotonic()

    async def write(self, events: bytes) -> None:
        """Writes events without buffering; waits while the client's socket is full.

        Raises:
            ConnectionError: the client is gone, or has read nothing for WRITE_TIMEOUT_S.
        """
        if not events:
            if not self.response.prepared or time.monotonic() - self._written < self._idle_s:
                return
            events = COMMENT
        self._written = time.monotonic()
        if not self.response.prepared:
            await self.response.prepare(self._request)
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self.response.write(events)
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionError("the client doesn't read") from None

    async def end(self, events: bytes = b"") -> None:
        """Writes the last events, and ends the response."""
        await self.write(events)
        await self.response.write_eof()

    async def __aenter__(self) -> EventStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, ConnectionError):
            return False  # no error, or the client has disconnected
        if not self.response.prepared:
            return False
        await self.end(self._on_error(as_api_error(error)))
        return True
