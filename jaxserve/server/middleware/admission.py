"""Counts requests in flight; refuses new ones while the server drains."""

from __future__ import annotations

from aiohttp import web

from jaxserve.server.context import SERVER_CONTEXT
from jaxserve.server.middleware.auth import PUBLIC_PATHS
from jaxserve.server.middleware.errors import Handler


@web.middleware
async def admission_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.path in PUBLIC_PATHS:  # probes are answered while the server drains, too
        return await handler(request)
    with request.app[SERVER_CONTEXT].admission.admit():
        return await handler(request)
