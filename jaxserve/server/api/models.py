"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from aiohttp import web

from jaxserve.server.api.generation import json_response
from jaxserve.server.context import SERVING, Serving
from jaxserve.server.wire.answers import Model, ModelList


async def list_models(request: web.Request) -> web.Response:
    serving = request.app[SERVING]
    return json_response(ModelList(data=[_model(serving, name) for name in serving.names]))


async def show_model(request: web.Request) -> web.Response:
    serving = request.app[SERVING]
    name = request.match_info["id"]
    serving.check_model(name)
    return json_response(_model(serving, name))


def _model(serving: Serving, name: str) -> Model:
    client = serving.client
    return Model(
        id=name,
        created=serving.created,
        max_model_len=client.max_model_len,
        root=client.model_name,
    )
