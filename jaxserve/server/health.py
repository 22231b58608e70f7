"""What orchestrators, load balancers and Prometheus ask for: /health, /ready, /load, /metrics."""

from __future__ import annotations

import msgspec
from aiohttp import web
from prometheus_client.exposition import choose_encoder

import jaxserve
from jaxserve.server.context import SERVING
from jaxserve.server.errors import unavailable
from jaxserve.server.generation import json_response


class Health(msgspec.Struct):
    status: str = "ok"


class Load(msgspec.Struct):
    server_load: int


class Version(msgspec.Struct):
    version: str = jaxserve.__version__


async def health(request: web.Request) -> web.Response:
    """200 while the engine process lives, 503 after."""
    if not request.app[SERVING].client.healthy:
        raise unavailable("the engine process is gone; restart the server", "engine_dead")
    return json_response(Health())


async def ready(request: web.Request) -> web.Response:
    """200 while new requests are let in, 503 once the server drains or the engine is gone."""
    if request.app[SERVING].admission.closed:
        raise unavailable("the server is shutting down", "shutting_down")
    return await health(request)


async def load(request: web.Request) -> web.Response:
    """Requests in flight, this one not counted."""
    return json_response(Load(request.app[SERVING].admission.in_flight - 1))


async def metrics(request: web.Request) -> web.Response:
    """Prometheus figures, in the format that the Accept header prefers."""
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    body = encode(request.app[SERVING].registry)
    return web.Response(body=body, headers={"Content-Type": content_type})


async def version(request: web.Request) -> web.Response:
    return json_response(Version())
