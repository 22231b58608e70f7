"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from jaxserve.errors import InvalidRequestError
from jaxserve.server.api import generation
from jaxserve.server.api.chat_prompts import conversation
from jaxserve.server.context import SERVING, Serving
from jaxserve.server.wire.requests import ChatCompletionRequest
from jaxserve.server.wire.tools import Tool
from jaxserve.server.wire.validation import parse, read_json


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text, or a conversation as a chat would have it.

    Args:
        add_special_tokens: as BOS; by default for a text, and not for a conversation, whose
            template writes them itself.
        return_token_strs: also answer with the tokens as the vocabulary has them.
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
    """However long the text is, which a client may want to know."""
    serving = request.app[SERVING]
    body = parse(await read_json(request), TokenizeRequest, {})
    if body.model is not None:
        serving.check_model(body.model)
    ids = await generation.off_loop(request, _ids, serving, body)
    strings = None
    if body.return_token_strs:
        strings = [serving.client.tokenizer.backend.id_to_token(i) or "" for i in ids]
    return generation.json_response(Tokens(len(ids), serving.client.max_model_len, ids, strings))


def _ids(serving: Serving, body: TokenizeRequest) -> list[int]:
    tokenizer = serving.client.tokenizer
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("you must provide prompt or messages, and not both", "prompt")
    if body.prompt is not None:
        for name in ("tools", "add_generation_prompt", "continue_final_message"):
            if getattr(body, name):
                raise InvalidRequestError(f"{name} needs messages, not a prompt", name)
        return tokenizer.encode(body.prompt, body.add_special_tokens is not False)
    chat = ChatCompletionRequest(
        model="",
        messages=body.messages or [],
        tools=body.tools,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    return tokenizer.encode(conversation(chat).text(serving), bool(body.add_special_tokens))


async def detokenize(request: web.Request) -> web.Response:
    serving = request.app[SERVING]
    body = parse(await read_json(request), DetokenizeRequest, {})
    if body.model is not None:
        serving.check_model(body.model)
    tokenizer = serving.client.tokenizer
    for token in body.tokens:
        if not 0 <= token < tokenizer.num_ids:
            raise InvalidRequestError(
                f"tokens must hold ids from 0 to {tokenizer.num_ids - 1}; one was {token}", "tokens"
            )
    return generation.json_response(Text(tokenizer.decode(body.tokens, skip_special_tokens=False)))
