"""The first half of the handlers that answer conversations: from the request to the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from aiohttp import web

from jaxserve.sampling.params import SamplingParams
from jaxserve.server.api.shared import generation
from jaxserve.server.api.shared.conversation import ChatPrompt
from jaxserve.server.api.shared.generation import DeltaBatches
from jaxserve.server.api.shared.json_body import read_body, run_off_loop
from jaxserve.server.context import SERVER_CONTEXT, ServerContext
from jaxserve.server.wire.generation_request import BaseGenerationRequest
from jaxserve.server.wire.ignored_fields import ignore
from jaxserve.server.wire.response_fields import TokenCount

Body = TypeVar("Body", bound=BaseGenerationRequest)


@dataclass(frozen=True, slots=True)
class StartedChat(Generic[Body]):
    """A request for the answer to a conversation, after it was sent to the engine."""

    context: ServerContext
    body: Body
    params: SamplingParams
    prompt: ChatPrompt
    batches: DeltaBatches
    count: TokenCount


async def start_chat(
    request: web.Request,
    into: type[Body],
    unsupported: Mapping[str, tuple[Any, ...]],
    render: Callable[[ServerContext, Body, SamplingParams], ChatPrompt],
) -> StartedChat[Body]:
    """Reads a request for the answer to a conversation, and sends it to the engine.

    Args:
        into, unsupported: as in read_body().
        render: makes the prompt; called in a thread if the body is long.

    Raises:
        ApiError, InvalidRequestError: the request can't be served. Fields have the API's names.
    """
    context = request.app[SERVER_CONTEXT]
    body = await read_body(request, into, unsupported)
    context.check_model(body.model)
    body.check()
    if getattr(body, "prediction", None) is not None and not context.client.config.speculation:
        ignore("prediction")
    with body.naming_errors():
        params = context.check_limits(body.to_sampling_params(context.client.sampling_defaults))
        prompt = await run_off_loop(request, render, context, body, params)
    params = prompt.params
    default = context.default_max_tokens(body.most_tokens)
    batches = generation.submit(
        context,
        [prompt.ids],
        params,
        body,
        **body.scheduling(),
        default_max_tokens=default,
        adapter=context.adapter(body.model),
    )
    return StartedChat(context, body, params, prompt, batches, TokenCount(len(prompt.ids)))
