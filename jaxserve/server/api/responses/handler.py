"""The handler of POST /v1/responses."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
from aiohttp import web

from jaxserve.sampling.params import SamplingParams
from jaxserve.server.api import generation
from jaxserve.server.api.chat_prompts import ChatPrompt, Conversation, begin
from jaxserve.server.api.generation import TokenCount
from jaxserve.server.api.responses.builder import ResponseBuilder
from jaxserve.server.api.responses.items import to_messages
from jaxserve.server.api.responses.request import UNSUPPORTED, ResponsesRequest
from jaxserve.server.api.responses.wire import (
    InputTokensDetails,
    OutputTokensDetails,
    Response,
    ResponseUsage,
)
from jaxserve.server.context import Serving
from jaxserve.server.wire.answers import new_id
from jaxserve.server.wire.logprobs_format import LogprobsWriter


async def create_response(request: web.Request) -> web.StreamResponse:
    chat = await begin(request, ResponsesRequest, UNSUPPORTED, render)
    serving, count = chat.serving, chat.count
    parser = chat.prompt.parts.start()
    builder = ResponseBuilder(
        empty_response(serving, chat.body, chat.params),
        parser,
        LogprobsWriter(serving.client.tokenizer),
        serving.new_call_id,
    )

    def end() -> Iterator[bytes]:
        return builder.end(count_usage(serving, count, parser.thought))

    if chat.body.stream:
        return await generation.stream(
            request, chat.batches, builder.feed, end, count, on_error=builder.fail
        )
    (output,) = await generation.gather(chat.batches, 1, count)
    # The events themselves are of no use here.
    for _ in (*builder.feed(output), *end()):
        pass
    return generation.json_response(builder.response)


def render(serving: Serving, body: ResponsesRequest, params: SamplingParams) -> ChatPrompt:
    """The prompt, by the model's chat template.

    Raises:
        InvalidRequestError: an item is malformed or unsupported, the template refuses them or
            knows nothing of what it is given, or the prompt is too long.
    """
    messages = to_messages(body.input, body.instructions)
    effort = body.reasoning.effort if body.reasoning else None
    conversation = Conversation(messages, body.tool_use(), {}, {"reasoning_effort": effort})
    return conversation.render(serving, params)


def empty_response(serving: Serving, body: ResponsesRequest, params: SamplingParams) -> Response:
    """The response before there is any output."""
    text = msgspec.to_builtins(body.text) if body.text else {}
    return Response(
        id=new_id("resp"),
        created_at=int(time.time()),
        model=serving.names[0],
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_logprobs=body.top_logprobs or 0,
        text={"format": text.get("format") or {"type": "text"}, "verbosity": "medium"},
        reasoning={"effort": body.reasoning and body.reasoning.effort, "summary": None},
        tools=list(body.tools or ()),
        tool_choice=body.tool_choice or "auto",
        parallel_tool_calls=body.parallel_tool_calls is not False,
        metadata=body.metadata or {},
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
    )


def count_usage(serving: Serving, count: TokenCount, thought: str) -> ResponseUsage:
    """Args: thought: the reasoning's text, whose tokens are counted anew."""
    tokenizer = serving.client.tokenizer
    thoughts = len(tokenizer.encode(thought, add_special_tokens=False)) if thought else 0
    return ResponseUsage(
        count.prompt,
        InputTokensDetails(count.cached),
        count.completion,
        OutputTokensDetails(min(thoughts, count.completion)),
        count.prompt + count.completion,
    )
