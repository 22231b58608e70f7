"""Counts requests in flight; refuses new ones while the server drains."""

from __future__ import annotations

from aiohttp import web

from jaxserve.server.context import SERVER_CONTEXT
from jaxserve.server.middleware.auth import is_public
from jaxserve.server.middleware.errors import Handler

EVENTS_PATH = "/v1/engine/events"


@web.middleware
async def admission_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    # Probes are answered while the server drains, too; who watches the engine is no work for it.
    if is_public(request.path) or request.path == EVENTS_PATH:
        return await handler(request)
    with request.app[SERVER_CONTEXT].admission.admit():
        return await handler(request)
