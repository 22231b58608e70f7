"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import msgspec
from aiohttp import web

from jaxserve.server.api.shared.json_body import json_response
from jaxserve.server.context import SERVER_CONTEXT, ServerContext


class Model(msgspec.Struct, kw_only=True):
    """Args:
    root: what the model, or the adapter, was loaded from.
    parent: of an adapter the model that it changes.
    """

    id: str
    created: int
    max_model_len: int
    root: str
    object: str = "model"
    owned_by: str = "jaxserve"
    parent: str | None = None


class ModelList(msgspec.Struct, kw_only=True):
    data: list[Model]
    object: str = "list"


async def list_models(request: web.Request) -> web.Response:
    context = request.app[SERVER_CONTEXT]
    names = [*context.model_names, *context.client.adapters]
    return json_response(ModelList(data=[_model(context, name) for name in dict.fromkeys(names)]))


async def show_model(request: web.Request) -> web.Response:
    context = request.app[SERVER_CONTEXT]
    name = request.match_info["id"]
    context.check_model(name)
    return json_response(_model(context, name))


def _model(context: ServerContext, name: str) -> Model:
    client, adapter = context.client, context.adapter(name)
    return Model(
        id=name,
        created=context.created,
        max_model_len=client.max_model_len,
        root=client.model_name if adapter is None else client.adapters[name].path,
        parent=None if adapter is None else context.model_names[0],
    )
