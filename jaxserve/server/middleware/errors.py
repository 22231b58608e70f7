"""Error responses, and the type that all middlewares share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from jaxserve.server.observability.request_log import RECORD
from jaxserve.server.wire.errors import as_api_error
from jaxserve.server.wire.messages.response import PATH, message_error

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns an exception that a handler raises before it has sent anything into a response."""
    try:
        return await handler(request)
    except ConnectionError:
        # The client has disconnected. aiohttp cancels the handlers of such clients, but a write
        # can fail before it does, which it would log as a server error.
        raise asyncio.CancelledError from None
    except Exception as error:
        known = as_api_error(error)
        if not is_anthropic(request.path):
            return known.response()
        return known.response(message_error(known, request[RECORD].id))


def is_anthropic(path: str) -> bool:
    """Whether a path is of Anthropic's API, whose errors have another form."""
    return path == PATH or path.startswith(f"{PATH}/")
