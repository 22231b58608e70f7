"""GET /health and /version."""

from __future__ import annotations

import msgspec
from aiohttp import web

import jaxserve
from jaxserve.server.context import SERVING
from jaxserve.server.errors import unavailable
from jaxserve.server.generation import json_response


class Health(msgspec.Struct):
    status: str = "ok"


class Version(msgspec.Struct):
    version: str = jaxserve.__version__


async def health(request: web.Request) -> web.Response:
    """200 while the engine process lives, 503 after."""
    if not request.app[SERVING].client.healthy:
        raise unavailable("the engine process is gone; restart the server", "engine_dead")
    return json_response(Health())


async def version(request: web.Request) -> web.Response:
    return json_response(Version())
