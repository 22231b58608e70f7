"""Authentication by API key."""

from __future__ import annotations

from aiohttp import web

from jaxserve.server.context import SERVER_CONTEXT
from jaxserve.server.middleware.errors import Handler
from jaxserve.server.observability.request_log import RECORD
from jaxserve.server.wire.errors import ApiError

# Answered without a key, for load balancers, orchestrators, Prometheus and readers of the
# documentation. Their responses contain nothing about individual requests.
PUBLIC_PATHS = frozenset(
    {"/health", "/ready", "/ping", "/version", "/metrics", "/openapi.json", "/docs"}
)


def is_public(path: str) -> bool:
    """Whether a path is answered without a key. The page's files say nothing of the server."""
    return path in PUBLIC_PATHS or path == "/" or path.startswith("/page/")


@web.middleware
async def auth_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    context = request.app[SERVER_CONTEXT]
    if context.keys and not is_public(request.path):
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        salt = context.keys.find(key.strip()) if scheme.lower() == "bearer" else None
        if salt is None and (key := request.headers.get("x-api-key", "")):  # as Anthropic's clients
            salt = context.keys.find(key.strip())
        if salt is None:
            raise ApiError(
                401,
                "a valid API key is needed: send a header Authorization: Bearer KEY, or "
                "x-api-key: KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        request[RECORD].key_id = salt
        if context.config.salt_cache_by_key:
            request[RECORD].key_salt = salt
    return await handler(request)
