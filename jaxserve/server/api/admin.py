"""What operators alone may ask, behind --enable-dev-endpoints."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import msgspec
from aiohttp import web

import jaxserve
from jaxserve.errors import EngineError
from jaxserve.server.api.generation import json_response
from jaxserve.server.context import SERVING
from jaxserve.server.cors import own_pages_alone
from jaxserve.server.wire.errors import ApiError


class Done(msgspec.Struct):
    status: str = "ok"
    folder: str | msgspec.UnsetType = msgspec.UNSET


def conflict(message: str) -> ApiError:
    return ApiError(409, message, code="conflict")


@own_pages_alone
async def reset_prefix_cache(request: web.Request) -> web.Response:
    """Forgets all cached text; 409 while requests hold some."""
    if not await request.app[SERVING].client.ask("reset_prefix_cache"):
        raise conflict("requests are running on the cache: try again once none is")
    return json_response(Done())


@own_pages_alone
async def start_profile(request: web.Request) -> web.Response:
    """Starts JAX's profiler in the engine process; 409 if it runs already."""
    serving = request.app[SERVING]
    folder = str(Path(serving.config.profile_dir).resolve())
    try:
        await serving.client.ask("start_profile", folder)
    except EngineError as error:
        raise conflict(str(error)) from None
    return json_response(Done(folder=folder))


@own_pages_alone
async def stop_profile(request: web.Request) -> web.Response:
    """Stops it and writes what it saw, for TensorBoard and Perfetto; 409 if it doesn't run."""
    try:
        await request.app[SERVING].client.ask("stop_profile")
    except EngineError as error:
        raise conflict(str(error)) from None
    return json_response(Done())


async def server_info(request: web.Request) -> web.Response:
    """Every setting, but for the keys."""
    serving = request.app[SERVING]
    client = serving.client
    server = {k: v for k, v in asdict(serving.config).items() if k != "api_key"}
    info = {
        "version": jaxserve.__version__,
        "models": serving.names,
        "engine": asdict(client.config),
        "server": server,
        "ready": client.ready,
    }
    return web.Response(body=msgspec.json.encode(info), content_type="application/json")
