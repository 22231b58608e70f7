"""The aiohttp application: routes and what surrounds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from jaxserve.config import ServerConfig
from jaxserve.server.api import openapi
from jaxserve.server.api.operations import OPERATIONS, OPERATORS
from jaxserve.server.auth import OPEN_PATHS, auth_middleware
from jaxserve.server.context import SERVING, Serving
from jaxserve.server.cors import allow_origin, preflight_middleware
from jaxserve.server.keys import Keys
from jaxserve.server.observability.request_log import add_request_id, record_middleware
from jaxserve.server.wire.errors import Handler, error_middleware

if TYPE_CHECKING:
    from jaxserve.engine.frontend.client import EngineClient


def create_app(
    client: EngineClient, config: ServerConfig, keys: Keys | None = None
) -> web.Application:
    """The server in front of one engine.

    Run it with `handler_cancellation=True`: a client that leaves aborts its request only so.
    """
    app = web.Application(
        client_max_size=config.max_body_bytes,
        middlewares=[
            record_middleware,
            preflight_middleware,
            error_middleware,
            auth_middleware,
            admission_middleware,
        ],
    )
    app[SERVING] = Serving(client, config, keys or Keys())
    app.on_response_prepare.extend((add_request_id, allow_origin))
    operations = OPERATIONS + (OPERATORS if config.enable_dev_endpoints else ())
    app.add_routes([operation.route() for operation in operations])
    app.add_routes(openapi.routes(operations, with_keys=bool(keys)))
    return app


@web.middleware
async def admission_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.path in OPEN_PATHS:  # answered even while the server drains
        return await handler(request)
    with request.app[SERVING].admission.admit():
        return await handler(request)
