"""POST /v1/embeddings: the last hidden state at a text's last token, scaled to length 1."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Literal

import msgspec
import numpy as np
from aiohttp import web

from jaxserve.errors import EngineError, InvalidRequestError
from jaxserve.sampling.params import SamplingParams
from jaxserve.server.api.shared.json_body import json_response, read_body, run_off_loop
from jaxserve.server.context import SERVER_CONTEXT, ServerContext
from jaxserve.server.observability.request_log import current_record
from jaxserve.server.wire.generation_request import check_scheduling, prompt_list
from jaxserve.server.wire.response_fields import TokenCount

MAX_INPUTS = 2048  # OpenAI's limit
CHUNK = 256  # inputs that a request has in the engine at once, so that it doesn't fill the queue


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/embeddings.

    Args:
        input: a text, token ids, or several of either.
        dimensions: must be the model's own number: embeddings can't be shortened.
        truncate_prompt_tokens: use only this many tokens at the end; -1 means the context length.
        user: labels the request for the caller's own records.
        request_id: as in BaseGenerationRequest.
    """

    model: str | None = None
    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    user: str | None = None
    request_id: str | None = None


class Embedding(msgspec.Struct):
    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class Embeddings(msgspec.Struct, kw_only=True):
    """An embedding is a list of numbers, or their float32 bytes (little-endian) in base64."""

    object: str = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


async def create_embeddings(request: web.Request) -> web.Response:
    context = request.app[SERVER_CONTEXT]
    body = await read_body(request, EmbeddingRequest)
    context.check_model(body.model)
    check_scheduling(body.priority, body.cache_salt)
    if body.dimensions not in (None, size := context.client.ready.embedding_size):
        raise InvalidRequestError(
            f"dimensions must be {size}, this model's own; leave it out", "dimensions"
        )
    params = SamplingParams(
        max_tokens=1, temperature=0, truncate_prompt_tokens=body.truncate_prompt_tokens
    )
    prompts = await run_off_loop(request, _tokenize, context, body, params)
    vectors = await _embed(context, body, prompts, params)
    write = _base64 if body.encoding_format == "base64" else _floats
    tokens = sum(map(len, prompts))
    return json_response(
        Embeddings(
            data=[Embedding(i, write(vector)) for i, vector in enumerate(vectors)],
            model=context.reported_model(body.model),
            usage=EmbeddingUsage(tokens, tokens),
        )
    )


def _tokenize(
    context: ServerContext, body: EmbeddingRequest, params: SamplingParams
) -> list[list[int]]:
    prompts = prompt_list(body.input, "input")
    if len(prompts) > MAX_INPUTS:
        raise InvalidRequestError(f"input takes at most {MAX_INPUTS} texts", "input")
    special = body.add_special_tokens is not False
    try:
        return [context.client.prepare(prompt, params, special, False) for prompt in prompts]
    except InvalidRequestError as error:
        param = "input" if error.param in ("prompt", "max_tokens") else error.param
        raise InvalidRequestError(str(error), param, error.code) from None


async def _embed(
    context: ServerContext,
    body: EmbeddingRequest,
    prompts: Sequence[list[int]],
    params: SamplingParams,
) -> list[bytes]:
    """The embeddings of all prompts, in order, as float32 bytes."""
    record = current_record()
    record.tokens = TokenCount(sum(map(len, prompts)))
    vectors: dict[int, bytes] = {}
    for first in range(0, len(prompts), CHUNK):
        batches = context.client.stream(
            prompts[first : first + CHUNK],
            params,
            request_id=record.id,
            priority=body.priority or 0,
            cache_salt=record.cache_salt(body.cache_salt),
            pool=True,
            adapter=context.adapter(body.model),
        )
        async with aclosing(batches):
            async for batch in batches:
                for delta in batch:
                    record.tokens.add(delta)
                    if delta.embedding is not None:
                        vectors[first + delta.index] = delta.embedding
    if len(vectors) < len(prompts):
        raise EngineError("some embeddings are missing")
    return [vectors[i] for i in range(len(prompts))]


def _floats(vector: bytes) -> list[float]:
    floats: Any = np.frombuffer(vector, np.float32).tolist()
    return floats


def _base64(vector: bytes) -> str:
    return base64.b64encode(vector).decode()
