"""State of the server: /health, /ready, /load, /metrics and /version."""

from __future__ import annotations

import msgspec
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE_LATEST
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics

import jaxserve
from jaxserve.server.api.shared.json_body import json_response
from jaxserve.server.context import SERVER_CONTEXT
from jaxserve.server.wire.errors import unavailable

# One step may take longer than the engine's loop may be silent: this many times stall_timeout.
STEP_STALLS = 10
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Health(msgspec.Struct):
    status: str = "ok"


class Load(msgspec.Struct):
    server_load: int


class Version(msgspec.Struct):
    version: str = jaxserve.__version__


async def health(request: web.Request) -> web.Response:
    """200 while the engine process is alive and makes progress, otherwise 503."""
    context = request.app[SERVER_CONTEXT]
    client, limit = context.client, context.config.stall_timeout
    if not client.healthy:
        raise unavailable("the engine process has died; restart the server", "engine_dead")
    if client.silent_s > limit:
        raise unavailable(
            f"the engine has work, but has sent nothing for {client.silent_s:.0f} s",
            "engine_stuck",
        )
    if client.stats.busy_s > STEP_STALLS * limit:
        raise unavailable(
            f"the device has been busy with one step for {client.stats.busy_s:.0f} s",
            "engine_stuck",
        )
    return json_response(Health())


async def ready(request: web.Request) -> web.Response:
    """200 while new requests are accepted; 503 while the server drains or without an engine."""
    if request.app[SERVER_CONTEXT].admission.closed:
        raise unavailable("the server is shutting down", "shutting_down")
    return await health(request)


async def load(request: web.Request) -> web.Response:
    """Requests in flight in all server processes, without this one."""
    context = request.app[SERVER_CONTEXT]
    others = await context.workers.in_flight() if context.workers else 0
    return json_response(Load(context.admission.in_flight - 1 + others))


async def metrics(request: web.Request) -> web.Response:
    """Metrics of all server processes, in the format that the Accept header prefers."""
    context = request.app[SERVER_CONTEXT]
    collected = context.worker_registry.collect()
    if context.workers:
        collected = await context.workers.metrics(collected)
    families = _MetricList([*context.engine_registry.collect(), *collected])
    if "application/openmetrics-text" in request.headers.get("Accept", ""):
        # vLLM's names have colons, which prometheus_client would replace in this format.
        body = openmetrics.generate_latest(families, escaping=openmetrics.ALLOWUTF8)
        content_type = OPENMETRICS_TYPE
    else:
        body, content_type = generate_latest(families), CONTENT_TYPE_LATEST
    return web.Response(body=body, headers={"Content-Type": content_type})


class _MetricList:
    """Has the one method of a registry that prometheus_client's encoders use."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


async def version(request: web.Request) -> web.Response:
    return json_response(Version())
