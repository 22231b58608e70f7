"""What orchestrators, load balancers and Prometheus ask for: /health, /ready, /load, /metrics."""

from __future__ import annotations

import msgspec
from aiohttp import web
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

import jaxserve
from jaxserve.server.api.generation import json_response
from jaxserve.server.context import SERVING
from jaxserve.server.wire.errors import unavailable

# A step is the device's doing: it may take longer than the loop around it may be silent.
STEP_STALLS = 10


class Health(msgspec.Struct):
    status: str = "ok"


class Load(msgspec.Struct):
    server_load: int


class Version(msgspec.Struct):
    version: str = jaxserve.__version__


async def health(request: web.Request) -> web.Response:
    """200 while the engine process lives and works, 503 after."""
    serving = request.app[SERVING]
    client, limit = serving.client, serving.config.stall_timeout
    if not client.healthy:
        raise unavailable("the engine process is gone; restart the server", "engine_dead")
    if client.silent_s > limit:
        raise unavailable(
            f"the engine has work, and its loop hasn't moved for {client.silent_s:.0f} s",
            "engine_stuck",
        )
    if client.stats.busy_s > STEP_STALLS * limit:
        raise unavailable(
            f"the device has been at one step for {client.stats.busy_s:.0f} s", "engine_stuck"
        )
    return json_response(Health())


async def ready(request: web.Request) -> web.Response:
    """200 while new requests are let in, 503 once the server drains or the engine is gone."""
    if request.app[SERVING].admission.closed:
        raise unavailable("the server is shutting down", "shutting_down")
    return await health(request)


async def load(request: web.Request) -> web.Response:
    """Requests in flight in all server processes, this one not counted."""
    serving = request.app[SERVING]
    others = await serving.peers.in_flight() if serving.peers else 0
    return json_response(Load(serving.admission.in_flight - 1 + others))


async def metrics(request: web.Request) -> web.Response:
    """Prometheus figures of all server processes, in the format that the Accept header prefers."""
    serving = request.app[SERVING]
    counts = serving.counts.collect()
    if serving.peers:
        counts = await serving.peers.metrics(counts)
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    body = encode(_Families([*serving.engine.collect(), *counts]))
    return web.Response(body=body, headers={"Content-Type": content_type})


class _Families:
    """What prometheus_client's encoders take for a registry."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


async def version(request: web.Request) -> web.Response:
    return json_response(Version())
