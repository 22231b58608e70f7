"""Who may come in."""

from __future__ import annotations

from aiohttp import web

from jaxserve.server.context import SERVING
from jaxserve.server.observability.request_log import RECORD
from jaxserve.server.wire.errors import ApiError, Handler

# Asked for without a key by load balancers, orchestrators, Prometheus and readers of the
# documentation; they tell nothing of requests.
OPEN_PATHS = frozenset(
    {"/health", "/ready", "/ping", "/version", "/metrics", "/openapi.json", "/docs"}
)


@web.middleware
async def auth_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    serving = request.app[SERVING]
    if serving.keys and request.path not in OPEN_PATHS:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        salt = serving.keys.find(key.strip()) if scheme.lower() == "bearer" else None
        if salt is None:
            raise ApiError(
                401,
                "a known API key is needed, in a header Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if serving.config.salt_cache_by_key:
            request[RECORD].key_salt = salt
    return await handler(request)
