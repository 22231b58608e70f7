"""GET and DELETE /v1/responses/{id}: responses that are stored."""

from __future__ import annotations

import msgspec
from aiohttp import web

from jaxserve.server.api.shared.json_body import json_response
from jaxserve.server.context import SERVER_CONTEXT
from jaxserve.server.observability.request_log import RECORD
from jaxserve.server.wire.errors import ApiError


class DeletedResponse(msgspec.Struct, kw_only=True):
    id: str
    object: str = "response"
    deleted: bool = True


async def get_response(request: web.Request) -> web.Response:
    store, response_id = request.app[SERVER_CONTEXT].responses, request.match_info["id"]
    stored = store.get(request[RECORD].key_id, response_id)
    if stored is None:
        raise _not_found(response_id)
    return web.Response(body=stored.body, content_type="application/json")


async def delete_response(request: web.Request) -> web.Response:
    store, response_id = request.app[SERVER_CONTEXT].responses, request.match_info["id"]
    if not store.delete(request[RECORD].key_id, response_id):
        raise _not_found(response_id)
    return json_response(DeletedResponse(id=response_id))


def _not_found(response_id: str) -> ApiError:
    return ApiError(
        404,
        f"Response with id {response_id!r} not found: it was never stored here, or newer ones have "
        "taken its place",
        code="response_not_found",
    )
