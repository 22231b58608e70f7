"""The aiohttp application: routes and what surrounds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from jaxserve.config import ServerConfig
from jaxserve.server import chat, completions, health, models, responses_api
from jaxserve.server.context import SERVING, Serving
from jaxserve.server.errors import Handler, error_middleware

if TYPE_CHECKING:
    from jaxserve.engine.client import EngineClient


def create_app(client: EngineClient, config: ServerConfig) -> web.Application:
    """The server in front of one engine.

    Run it with `handler_cancellation=True`: a client that leaves aborts its request only so.
    """
    app = web.Application(
        client_max_size=config.max_body_bytes,
        middlewares=[error_middleware, admission_middleware],
    )
    app[SERVING] = Serving(client, config)
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat.create_chat_completion),
            web.post("/v1/completions", completions.create_completion),
            web.post("/v1/responses", responses_api.create_response),
            web.get("/v1/models", models.list_models),
            web.get("/v1/models/{id:.+}", models.show_model),
            web.get("/health", health.health),
            web.get("/version", health.version),
        ]
    )
    return app


@web.middleware
async def admission_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    with request.app[SERVING].admission.admit():
        return await handler(request)
