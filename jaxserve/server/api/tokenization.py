"""POST /tokenize and /detokenize, with vLLM's fields."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from jaxserve.errors import InvalidRequestError
from jaxserve.server.api.shared.conversation import chat_conversation
from jaxserve.server.api.shared.json_body import json_response, read_body, run_off_loop
from jaxserve.server.context import SERVER_CONTEXT, ServerContext
from jaxserve.server.wire.chat.request import ChatCompletionRequest
from jaxserve.server.wire.tools import Tool

MAX_CHARACTERS = 2**21  # about half a million tokens, a second of work


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text, or the messages of a chat completion.

    Args:
        add_special_tokens: such as BOS. The default is true for a text, and false for messages,
            because the chat template writes them.
        return_token_strs: add the tokens' texts in the vocabulary to the response.
    """

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class Tokens(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    tokens: list[int]


class Text(msgspec.Struct):
    prompt: str


async def tokenize(request: web.Request) -> web.Response:
    """Texts longer than the context are tokenized, too, so that clients can find their length; up
    to MAX_CHARACTERS."""
    context = request.app[SERVER_CONTEXT]
    body = await read_body(request, TokenizeRequest)
    if body.model is not None:
        context.check_model(body.model)
    ids = await run_off_loop(request, _token_ids, context, body)
    strings = None
    if body.return_token_strs:
        strings = [context.client.tokenizer.vocabulary.piece(i) or "" for i in ids]
    return json_response(Tokens(len(ids), context.client.max_model_len, ids, strings))


def _token_ids(context: ServerContext, body: TokenizeRequest) -> list[int]:
    tokenizer = context.client.tokenizer
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("you must provide either prompt or messages", "prompt")
    if body.prompt is not None:
        for name in ("tools", "add_generation_prompt", "continue_final_message"):
            if getattr(body, name):
                raise InvalidRequestError(f"{name} needs messages, not a prompt", name)
        _check_length(body.prompt, "prompt")
        return tokenizer.encode(body.prompt, body.add_special_tokens is not False)
    chat = ChatCompletionRequest(
        model="",
        messages=body.messages or [],
        tools=body.tools,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    text = chat_conversation(chat).text(context)
    _check_length(text, "messages")
    return tokenizer.encode(text, bool(body.add_special_tokens))


def _check_length(text: str, field: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise InvalidRequestError(
            f"the prompt has {len(text)} characters; at most {MAX_CHARACTERS} are tokenized at "
            "once: send it in parts",
            field,
        )


async def detokenize(request: web.Request) -> web.Response:
    context = request.app[SERVER_CONTEXT]
    body = await read_body(request, DetokenizeRequest)
    if body.model is not None:
        context.check_model(body.model)
    return json_response(Text(await run_off_loop(request, _text, context, body.tokens)))


def _text(context: ServerContext, tokens: list[int]) -> str:
    tokenizer = context.client.tokenizer
    for token in tokens:
        if not 0 <= token < tokenizer.num_ids:
            raise InvalidRequestError(
                f"tokens must hold ids from 0 to {tokenizer.num_ids - 1}; one was {token}",
                "tokens",
            )
    return tokenizer.decode(tokens, skip_special_tokens=False)
