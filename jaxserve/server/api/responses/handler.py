"""The handler of POST /v1/responses."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from aiohttp import web

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams
from jaxserve.server.api.responses.builder import ResponseBuilder
from jaxserve.server.api.shared import generation
from jaxserve.server.api.shared.conversation import ChatPrompt, Conversation, template_arguments
from jaxserve.server.api.shared.generation import count_reasoning
from jaxserve.server.api.shared.json_body import json_response
from jaxserve.server.api.shared.logprobs_writer import LogprobsWriter
from jaxserve.server.api.shared.start_chat import start_chat
from jaxserve.server.context import ServerContext
from jaxserve.server.observability.request_log import current_record
from jaxserve.server.wire.response_fields import TokenCount, new_id
from jaxserve.server.wire.responses.items import as_items, to_messages
from jaxserve.server.wire.responses.request import RESPONSES_UNSUPPORTED, ResponsesRequest
from jaxserve.server.wire.responses.response import (
    InputTokensDetails,
    OutputTokensDetails,
    Response,
    ResponseUsage,
)


async def create_response(request: web.Request) -> web.StreamResponse:
    chat = await start_chat(request, ResponsesRequest, RESPONSES_UNSUPPORTED, render)
    context, count = chat.context, chat.count
    parser = chat.prompt.answer_format.new_parser()
    builder = ResponseBuilder(
        empty_response(context, chat.body, chat.params),
        parser,
        LogprobsWriter(context.client.tokenizer, chat.params.skip_special_tokens).choice(
            chat.prompt.ids
        ),
        context.new_call_id,
    )

    async def end() -> list[bytes]:
        count.reasoning = await count_reasoning(context, [parser])
        events = list(builder.end(response_usage(count)))
        if builder.response.store:
            items = [*_conversation(context, chat.body), *builder.response.output]
            store, key = context.responses, current_record().key_id
            store.put(key, builder.response.id, builder.response, items)
        return events

    if chat.body.stream:
        return await generation.stream(
            request, chat.batches, builder.feed, end, count, on_error=builder.fail
        )
    (output,) = await generation.gather(chat.batches, 1, count)
    # The builder builds the response while it makes events, which aren't needed here.
    for _ in (*builder.feed(output), *await end()):
        pass
    return json_response(builder.response)


def render(context: ServerContext, body: ResponsesRequest, params: SamplingParams) -> ChatPrompt:
    """The prompt, by the model's chat template.

    Raises:
        InvalidRequestError: an item is malformed or unsupported, the template refuses the
            messages or doesn't use a field that is set, or the prompt is too long.
    """
    given = _conversation(context, body) if body.previous_response_id else body.input
    messages = to_messages(given, body.instructions)
    effort = body.reasoning.effort if body.reasoning else None
    extra = template_arguments(body.chat_template_kwargs)
    conversation = Conversation(messages, body.tool_use(), extra, {"reasoning_effort": effort})
    return conversation.render(context, params)


def _conversation(context: ServerContext, body: ResponsesRequest) -> list[dict[str, Any]]:
    """The items of the response that a request goes on from, and its own.

    Raises:
        InvalidRequestError: that response isn't stored.
    """
    items = as_items(body.input)
    if body.previous_response_id is None:
        return items
    before = context.responses.get(current_record().key_id, body.previous_response_id)
    if before is None:
        raise InvalidRequestError(
            f"Previous response with id {body.previous_response_id!r} not found: this server keeps "
            f"the last {context.config.max_stored_responses} (--max-stored-responses), in one "
            "process; send the whole conversation as input",
            "previous_response_id",
            "previous_response_not_found",
        )
    return [*before.conversation(), *items]


def empty_response(
    context: ServerContext, body: ResponsesRequest, params: SamplingParams
) -> Response:
    """The response before any output."""
    text = msgspec.to_builtins(body.text) if body.text else {}
    return Response(
        id=new_id("resp_"),
        created_at=int(time.time()),
        model=context.reported_model(body.model),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_logprobs=body.top_logprobs or 0,
        text={"format": text.get("format") or {"type": "text"}, "verbosity": "medium"},
        reasoning={"effort": body.reasoning and body.reasoning.effort, "summary": None},
        tools=list(body.functions().values()),
        tool_choice=body.tool_choice or "auto",
        parallel_tool_calls=body.parallel_tool_calls is not False,
        metadata=body.metadata or {},
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
        store=body.store is not False and context.responses.is_on,
        previous_response_id=body.previous_response_id,
    )


def response_usage(count: TokenCount) -> ResponseUsage:
    return ResponseUsage(
        count.prompt,
        InputTokensDetails(count.cached),
        count.completion,
        OutputTokensDetails(min(count.reasoning or 0, count.completion)),
        count.prompt + count.completion,
    )
