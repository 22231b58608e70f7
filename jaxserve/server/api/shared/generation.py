"""From engine deltas to whole responses and to streams of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace

import msgspec
from aiohttp import web

from jaxserve.errors import EngineError
from jaxserve.outputs import CompletionDelta
from jaxserve.sampling.params import SamplingParams
from jaxserve.server.api.shared.json_body import INLINE_BYTES
from jaxserve.server.context import SERVER_CONTEXT, ServerContext
from jaxserve.server.observability.request_log import current_record
from jaxserve.server.parsers.answer_parser import AnswerParser
from jaxserve.server.wire.errors import ApiError
from jaxserve.server.wire.generation_request import BaseGenerationRequest, GenerationRequest
from jaxserve.server.wire.response_fields import TokenCount, Usage
from jaxserve.server.wire.sse import DONE, EventStream, error_event

DeltaBatches = AsyncGenerator[list[CompletionDelta], None]


async def submit(
    context: ServerContext,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    body: BaseGenerationRequest,
    priority: int = 0,
    cache_salt: str | None = None,
    echoes_prompt: bool = False,
    default_max_tokens: int | None = None,
    adapter: str | None = None,
) -> DeltaBatches:
    """Starts generation for the HTTP request that this task serves, once it is iterated.

    Args:
        body: names the fields of errors.
        adapter: its name; None is the base model.
        echoes_prompt, default_max_tokens: as of EngineClient.stream().
    """
    record = current_record()
    batches = context.client.stream(
        prompts,
        params,
        request_id=record.id,
        priority=priority,
        cache_salt=record.cache_salt(cache_salt),
        echoes_prompt=echoes_prompt,
        default_max_tokens=default_max_tokens,
        adapter=adapter,
    )
    with body.naming_errors():
        async with aclosing(batches):
            async for batch in batches:
                yield batch


async def gather(
    batches: DeltaBatches, num_choices: int, count: TokenCount
) -> list[CompletionDelta]:
    """Waits for the end of every choice; returns each choice's deltas joined to one.

    Args:
        count: the deltas' tokens are added to it.
    """
    deltas: list[list[CompletionDelta]] = [[] for _ in range(num_choices)]
    current_record().tokens = count
    async with aclosing(batches):
        async for batch in batches:
            for delta in batch:
                count.add(delta)
                deltas[delta.index].append(delta)
    if any(not choice or choice[-1].finish_reason is None for choice in deltas):
        raise EngineError("its output ended without a finish reason")
    return list(map(CompletionDelta.join, deltas))


def best_choices(
    outputs: Sequence[CompletionDelta], made: int, wanted: int
) -> list[CompletionDelta]:
    """Of each `made` consecutive outputs the `wanted` ones with the highest mean logprob, with new
    indices."""

    def mean_logprob(output: CompletionDelta) -> float:
        return sum(entry.logprob for entry in output.logprobs or ()) / max(len(output.token_ids), 1)

    kept = [
        output
        for first in range(0, len(outputs), made)
        for output in sorted(outputs[first : first + made], key=mean_logprob, reverse=True)[:wanted]
    ]
    return [replace(output, index=index) for index, output in enumerate(kept)]


async def stream(
    request: web.Request,
    batches: DeltaBatches,
    to_events: Callable[[CompletionDelta], Iterable[bytes]],
    last_events: Callable[[], Awaitable[Iterable[bytes]]],
    count: TokenCount,
    on_error: Callable[[ApiError], bytes] = error_event,
) -> web.StreamResponse:
    """Sends each delta as events, then the last events.

    Deltas that queue up during a blocked write are sent with one write. The response's headers are
    sent with the first delta or, if that takes long, with a comment before it; an error before
    them has a status code.
    """
    record = current_record()
    record.tokens = count

    def failed(error: ApiError) -> bytes:
        record.stream_error = error.status
        return on_error(error)

    keepalive_s = request.app[SERVER_CONTEXT].config.sse_keepalive
    async with EventStream(request, failed, keepalive_s) as events, aclosing(batches):
        async for batch in batches:
            written: list[bytes] = []
            for delta in batch:
                count.add(delta)
                written += to_events(delta)
            await events.write(b"".join(written))
        await events.end(b"".join(await last_events()))
    return events.response


async def count_reasoning(context: ServerContext, choices: Iterable[AnswerParser]) -> int:
    """Tokens of the reasoning that was found in choices. Its text is tokenized to count them; if it
    is long in a thread, so that the event loop isn't blocked."""
    texts = [choice.reasoning for choice in choices if choice.reasoning]

    def count() -> int:
        encode = context.client.tokenizer.encode
        return sum(len(encode(text, add_special_tokens=False)) for text in texts)

    return count() if sum(map(len, texts)) <= INLINE_BYTES else await asyncio.to_thread(count)


def chunk_usage(
    body: GenerationRequest, count: TokenCount
) -> Callable[[], Usage | msgspec.UnsetType | None]:
    """The `usage` of chunks with choices: the counts so far, null or absent, as the request's
    stream_options ask."""
    if body.continuous_usage:
        return count.usage
    return lambda: None if body.include_usage else msgspec.UNSET


def closing_events(
    usage_event: Callable[[], Awaitable[bytes]] | None,
) -> Callable[[], Awaitable[list[bytes]]]:
    """The last events of chats and completions: the usage if it is asked for, and [DONE]."""

    async def events() -> list[bytes]:
        return ([await usage_event()] if usage_event else []) + [DONE]

    return events
