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
COMMENT = b": more to come\n\n"
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

    written: when something was last sent, by time.monotonic(); at first, when it was made.

    Args:
        on_error: encodes the error event.
        keepalive_s: after so many seconds without an event a comment is sent, from the beginning
            on, so that neither the client nor a proxy takes the stream for dead; 0 sends none. The
            first comment comes with the status 200.
    """

    def __init__(
        self,
        request: web.Request,
        on_error: Callable[[ApiError], bytes] = error_event,
        keepalive_s: float = 0.0,
    ) -> None:
        self.response = web.StreamResponse(headers=_HEADERS)
        self._request = request
        self._on_error = on_error
        self._keepalive_s, self.written = keepalive_s, time.monotonic()
        self._preparing, self._writing = asyncio.Lock(), False
        self._keeper: asyncio.Task[None] | None = None

    async def write(self, events: bytes) -> None:
        """Writes events without buffering; waits while the client's socket is full.

        Raises:
            ConnectionError: the client is gone, or has read nothing for WRITE_TIMEOUT_S.
        """
        if not events:
            return
        self._writing = True
        if not self.response.prepared:
            async with self._preparing:
                if not self.response.prepared:
                    await self.response.prepare(self._request)
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self.response.write(events)
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionError("the client doesn't read") from None
        finally:
            self._writing = False
        self.written = time.monotonic()

    async def end(self, events: bytes = b"") -> None:
        """Writes the last events, and ends the response."""
        await self.write(events)
        await self.response.write_eof()

    async def _keep_alive(self) -> None:
        """Sends a comment whenever nothing else was sent for keepalive_s."""
        while True:
            left = self.written + self._keepalive_s - time.monotonic()
            await asyncio.sleep(max(left, self._keepalive_s / 4))
            silent = time.monotonic() >= self.written + self._keepalive_s
            if silent and not self._writing:  # to a client that reads slowly
                try:
                    await self.write(COMMENT)
                except ConnectionError:  # the handler notices it, too
                    return

    async def __aenter__(self) -> EventStream:
        if self._keepalive_s:
            self._keeper = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self._keeper is not None:
            self._keeper.cancel()
        if not isinstance(error, Exception) or isinstance(error, ConnectionError):
            return False  # no error, or the client has disconnected
        if not self.response.prepared:
            return False
        await self.end(self._on_error(as_api_error(error)))
        return True
