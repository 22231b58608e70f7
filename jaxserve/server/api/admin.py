"""Operations for administrators, which exist only with --enable-dev-endpoints."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import msgspec
from aiohttp import web

import jaxserve
from jaxserve.errors import EngineError
from jaxserve.server.api.shared.json_body import json_response
from jaxserve.server.context import SERVER_CONTEXT
from jaxserve.server.middleware.cors import refuse_cross_site
from jaxserve.server.wire.errors import ApiError


class AdminResponse(msgspec.Struct):
    status: str = "ok"
    folder: str | msgspec.UnsetType = msgspec.UNSET


def conflict(message: str) -> ApiError:
    return ApiError(409, message, code="conflict")


@refuse_cross_site
async def reset_prefix_cache(request: web.Request) -> web.Response:
    """Empties the prefix cache; 409 while requests use it."""
    if not await request.app[SERVER_CONTEXT].client.run_admin_command("reset_prefix_cache"):
        raise conflict("requests are using the prefix cache: try again when none is running")
    return json_response(AdminResponse())


@refuse_cross_site
async def start_profile(request: web.Request) -> web.Response:
    """Starts JAX's profiler in the engine process; 409 if it is running already."""
    context = request.app[SERVER_CONTEXT]
    folder = str(Path(context.config.profile_dir).resolve())
    try:
        await context.client.run_admin_command("start_profile", folder)
    except EngineError as error:
        raise conflict(str(error)) from None
    return json_response(AdminResponse(folder=folder))


@refuse_cross_site
async def stop_profile(request: web.Request) -> web.Response:
    """Stops the profiler and writes its trace, for TensorBoard and Perfetto; 409 if it isn't
    running."""
    try:
        await request.app[SERVER_CONTEXT].client.run_admin_command("stop_profile")
    except EngineError as error:
        raise conflict(str(error)) from None
    return json_response(AdminResponse())


async def server_info(request: web.Request) -> web.Response:
    """All settings, without API keys."""
    context = request.app[SERVER_CONTEXT]
    client = context.client
    server = {k: v for k, v in asdict(context.config).items() if k != "api_key"}
    info = {
        "version": jaxserve.__version__,
        "models": context.model_names,
        "engine": asdict(client.config),
        "server": server,
        "ready": client.ready,
    }
    return json_response(info)
