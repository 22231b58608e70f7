"""The handlers of POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Iterator

from aiohttp import web

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams
from jaxserve.server.api.messages.builder import MessageBuilder, message_usage
from jaxserve.server.api.shared import generation
from jaxserve.server.api.shared.conversation import ChatPrompt, Conversation
from jaxserve.server.api.shared.json_body import json_response, read_body, run_off_loop
from jaxserve.server.api.shared.start_chat import start_chat
from jaxserve.server.context import SERVER_CONTEXT, THINKING_ARGUMENTS, ServerContext
from jaxserve.server.observability.request_log import current_record
from jaxserve.server.wire.messages.content import to_messages
from jaxserve.server.wire.messages.request import (
    MESSAGES_UNSUPPORTED,
    CountTokensRequest,
    MessagesRequest,
)
from jaxserve.server.wire.messages.response import Message, TokensCounted
from jaxserve.server.wire.response_fields import new_id


async def create_message(request: web.Request) -> web.StreamResponse:
    chat = await start_chat(request, MessagesRequest, MESSAGES_UNSUPPORTED, render)
    context, count = chat.context, chat.count
    message = Message(
        id=new_id("msg_"),
        model=context.reported_model(chat.body.model),
        usage=message_usage(chat.count),
    )
    builder = MessageBuilder(
        message,
        chat.prompt.answer_format.new_parser(),
        count,
        chat.body.max_tokens,
        context.new_call_id,
        current_record().id,
    )

    async def end() -> Iterator[bytes]:
        return builder.end()

    if chat.body.stream:
        return await generation.stream(
            request, chat.batches, builder.feed, end, count, on_error=builder.fail
        )
    (output,) = await generation.gather(chat.batches, 1, count)
    # The builder builds the message while it makes events, which aren't needed here.
    for _ in (*builder.feed(output), *builder.end()):
        pass
    return json_response(builder.message)


async def count_tokens(request: web.Request) -> web.Response:
    """Prompts longer than the context are counted, too."""
    context = request.app[SERVER_CONTEXT]
    body = await read_body(request, CountTokensRequest, MESSAGES_UNSUPPORTED)
    context.check_model(body.model)

    def count() -> int:
        text = conversation(context, body).text(context)
        return len(context.client.tokenizer.encode(text, add_special_tokens=False))

    return json_response(TokensCounted(await run_off_loop(request, count)))


def render(context: ServerContext, body: MessagesRequest, params: SamplingParams) -> ChatPrompt:
    """The prompt, by the model's chat template.

    Raises:
        InvalidRequestError: a message is malformed or unsupported, the template refuses the
            messages, or the prompt is too long.
    """
    return conversation(context, body).render(context, params, show_reasoning=body.thinks)


def conversation(context: ServerContext, body: CountTokensRequest) -> Conversation:
    """The conversation of a request; an assistant's message at its end is continued."""
    messages = to_messages(body.messages, body.system)
    reads = context.client.tokenizer.template_reads
    extra = {name: body.thinks for name in THINKING_ARGUMENTS if reads(name)}
    effort = body.output_config.effort if body.output_config else None
    continues = messages[-1]["role"] == "assistant"
    if continues and "tool_calls" in messages[-1]:
        raise InvalidRequestError(
            "messages ends with a call of a tool: send its result after it", "messages"
        )
    return Conversation(
        messages, body.tool_use(), extra, {"reasoning_effort": effort}, continue_final=continues
    )
