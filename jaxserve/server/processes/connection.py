"""One connection of a client: limits of its heads, invalid HTTP, half-closed connections."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.http import HttpVersion11
from aiohttp.http_exceptions import LineTooLong

from jaxserve.server.wire.errors import ApiError

HEAD_TIMEOUT_S = 60.0  # until the first request's head is there
MAX_HEADER_BYTES = 65_536  # of one header, and of the request line
FIRST_PROBE_S, LAST_PROBE_S = 0.05, 1.0  # between probes of a half-closed connection
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection(web.RequestHandler):
    """aiohttp's protocol of a connection, with what it leaves open.

    It has no limit for the time until the first request, answers invalid HTTP with plain text, and
    gives no response to a client that has closed its sending half.
    """

    def __init__(self, server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # the request log is our own
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )
        self._probing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._loop.call_later(HEAD_TIMEOUT_S, self._close_without_request)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._probing is not None:
            self._probing.cancel()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The response to bytes that aren't valid HTTP, in the form of all errors.

        Raises:
            ConnectionError: a response was begun already.
        """
        super().handle_error(request, status, exc, message)  # logs it
        if isinstance(exc, LineTooLong):
            text = f"the request line and each header may have at most {MAX_HEADER_BYTES} bytes"
            error = ApiError(431, text, code="headers_too_large")
        elif status == 500:
            error = ApiError(500, "internal error; see the server's log", "server_error")
        else:
            first = (message or "").partition("\n")[0].strip().rstrip(":")
            error = ApiError(status, f"this isn't valid HTTP: {first}", code="invalid_http")
        response = error.response()
        response.force_close()
        return response

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's protocols return a bool
        """The client has closed its sending half, or has left: the same bytes on the wire.

        Returns:
            Whether the connection stays open, until it is known whether a response is to come.
        """
        if self.transport is None or self.transport.get_extra_info("sslcontext") is not None:
            return False  # TLS connections can't be half-closed in asyncio
        if self._awaits_response():
            self._close_after_response()
        else:
            # Before Python 3.12 aiohttp begins to handle a request one turn of the event loop after
            # it has taken it from its queue.
            self._loop.call_soon(self._close_unless_begun)
        return True

    def _close_unless_begun(self) -> None:
        if self._awaits_response():
            self._close_after_response()
        elif self.transport is not None:
            self.transport.close()

    def _close_after_response(self) -> None:
        self.close()
        self._probing = self._loop.create_task(self._probe())

    def _awaits_response(self) -> bool:
        """Whether the client has sent a whole request to which no response was begun."""
        if self._messages:
            return all(payload.is_eof() for _, payload in self._messages)
        request = self._current_request
        return (
            request is not None
            and request.content.is_eof()
            and request.version >= HttpVersion11
            and request.writer.output_size == 0
        )

    async def _probe(self) -> None:
        """Finds out whether the client has left, by informational responses until the response
        begins: a client that is there ignores them, the system of one that has left resets the
        connection, and the write after that fails, which cancels the handler."""
        wait = FIRST_PROBE_S
        while (transport := self.transport) is not None and not transport.is_closing():
            request = self._current_request
            if request is not None:
                if request.writer.output_size or request.version < HttpVersion11:
                    return
                transport.write(CONTINUE)
            await asyncio.sleep(wait)
            wait = min(2 * wait, LAST_PROBE_S)

    def _close_without_request(self) -> None:
        if self._request_count == 0 and self.transport is not None:
            self.transport.abort()


class ConnectionRunner(web.AppRunner):
    """Runs an application whose connections are Connections."""

    @property
    def server(self) -> Any:  # what sites make a connection's protocol with
        server = super().server
        return None if server is None else lambda: Connection(server, asyncio.get_running_loop())
