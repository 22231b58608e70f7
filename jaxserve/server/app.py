"""The aiohttp application: routes and middlewares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from jaxserve.config import ServerConfig
from jaxserve.server.api import openapi, page
from jaxserve.server.api.route_table import ADMIN_OPERATIONS, OPERATIONS
from jaxserve.server.api_keys import ApiKeys
from jaxserve.server.context import SERVER_CONTEXT, ServerContext
from jaxserve.server.middleware.admission import admission_middleware
from jaxserve.server.middleware.auth import auth_middleware
from jaxserve.server.middleware.cors import add_cors_headers, preflight_middleware
from jaxserve.server.middleware.errors import error_middleware
from jaxserve.server.middleware.request_logging import (
    add_request_headers,
    request_logging_middleware,
)

if TYPE_CHECKING:
    from jaxserve.engine.frontend.client import EngineClient


def create_app(
    client: EngineClient, config: ServerConfig, keys: ApiKeys | None = None
) -> web.Application:
    """The application in front of one engine.

    Run it with `handler_cancellation=True`: without it, aiohttp doesn't cancel the handler of a
    client that disconnects, and its request isn't aborted.
    """
    app = web.Application(
        client_max_size=config.max_body_bytes,
        middlewares=[  # outermost first
            request_logging_middleware,
            preflight_middleware,
            error_middleware,
            auth_middleware,
            admission_middleware,
        ],
    )
    app[SERVER_CONTEXT] = ServerContext(client, config, keys or ApiKeys())
    app.on_response_prepare.extend((add_request_headers, add_cors_headers))
    operations = OPERATIONS + (ADMIN_OPERATIONS if config.enable_dev_endpoints else ())
    app.add_routes([operation.route() for operation in operations])
    if config.page:
        app.add_routes(page.routes())
    app.add_routes(openapi.routes(operations, bool(keys), config.root_path))
    return app
