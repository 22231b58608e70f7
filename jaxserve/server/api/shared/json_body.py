"""JSON bodies of requests and responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

import msgspec
from aiohttp import web

from jaxserve.server.context import SERVER_CONTEXT
from jaxserve.server.observability.request_log import RECORD
from jaxserve.server.wire.validation import Body, parse, read_json

# A longer text is tokenized in a thread (tokenizers release the GIL): about 2 ms of work.
INLINE_BYTES = 16_384
NONE_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = MappingProxyType({})

P = ParamSpec("P")
R = TypeVar("R")


async def read_body(
    request: web.Request,
    into: type[Body],
    unsupported: Mapping[str, tuple[Any, ...]] = NONE_UNSUPPORTED,
) -> Body:
    """Reads a request's JSON body into a struct, and records it if prompts are logged.

    Args:
        into, unsupported: as in parse().

    Raises:
        ApiError: as read_json().
        InvalidRequestError: as parse().
    """
    body = await read_json(request)
    context, record = request.app[SERVER_CONTEXT], request[RECORD]
    if context.config.log_prompts:
        record.body = body
    parsed = parse(body, into, unsupported)
    if (own_id := getattr(parsed, "request_id", None)) is not None:
        before = record.id
        record.use_body_id(request, own_id)
        if context.tracer is not None:
            context.tracer.rename(before, record.id)
    return parsed


async def run_off_loop(
    request: web.Request, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Runs `work`; in a thread if the request's body is long, so that the event loop isn't
    blocked."""
    size = request.content_length
    if size is not None and size <= INLINE_BYTES:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


def json_response(content: msgspec.Struct | dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")
