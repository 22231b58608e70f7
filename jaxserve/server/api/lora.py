"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, with vLLM's bodies; they exist only with
--enable-dev-endpoints."""

from __future__ import annotations

import msgspec
from aiohttp import web

from jaxserve.errors import InvalidRequestError, ModelError, ModelNotFoundError
from jaxserve.server.api.shared.json_body import json_response, read_body
from jaxserve.server.context import SERVER_CONTEXT
from jaxserve.server.middleware.cors import refuse_cross_site
from jaxserve.server.wire.errors import ApiError

MAX_NAME = 256  # characters


class LoadLoraAdapterRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Args:
    lora_path: the adapter's folder, on the server's machine.
    load_inplace: in place of the adapter that has the name, if there is one.
    """

    lora_name: str
    lora_path: str
    load_inplace: bool | None = None


class UnloadLoraAdapterRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Args:
    lora_int_id: vLLM's; without effect.
    """

    lora_name: str
    lora_int_id: int | None = None


class LoraAdapterResponse(msgspec.Struct):
    status: str


@refuse_cross_site
async def load_lora_adapter(request: web.Request) -> web.Response:
    """Reads an adapter, and answers when requests can use it; others go on meanwhile."""
    context = request.app[SERVER_CONTEXT]
    body = await read_body(request, LoadLoraAdapterRequest)
    name = body.lora_name
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidRequestError(
            f"lora_name must be 1 to {MAX_NAME} characters that can be printed", "lora_name"
        )
    if name in context.model_names:
        raise InvalidRequestError(f"lora_name: {name!r} is the base model's name", "lora_name")
    try:
        await context.client.load_adapter(name, body.lora_path, bool(body.load_inplace))
    except InvalidRequestError as error:
        raise InvalidRequestError(str(error), "lora_name") from None
    except ModelNotFoundError as error:
        raise ApiError(404, str(error), param="lora_path", code="not_found") from None
    except ModelError as error:
        raise InvalidRequestError(str(error), "lora_path") from None
    return json_response(LoraAdapterResponse(f"Success: LoRA adapter '{name}' added successfully."))


@refuse_cross_site
async def unload_lora_adapter(request: web.Request) -> web.Response:
    """Takes an adapter's name away; requests that have it go on. 404 for an unknown name."""
    context = request.app[SERVER_CONTEXT]
    body = await read_body(request, UnloadLoraAdapterRequest)
    name = body.lora_name
    try:
        await context.client.unload_adapter(name)
    except InvalidRequestError as error:
        raise ApiError(404, str(error), param="lora_name", code="not_found") from None
    return json_response(
        LoraAdapterResponse(f"Success: LoRA adapter '{name}' removed successfully.")
    )
