"""What chat and text completions share: prompts in, deltas out, streamed or gathered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import msgspec
from aiohttp import web

from jaxserve.errors import EngineError
from jaxserve.outputs import CompletionDelta, CompletionOutput
from jaxserve.sampling.params import SamplingParams
from jaxserve.server.records import current
from jaxserve.server.responses import Usage
from jaxserve.server.sse import EventStream

if TYPE_CHECKING:
    from jaxserve.engine.client import EngineClient

# A longer body is tokenized in a thread (tokenizers lets go of the GIL): about 2 ms of work.
INLINE_BODY_BYTES = 16_384

P = ParamSpec("P")
R = TypeVar("R")
Deltas = AsyncGenerator[CompletionDelta, None]


async def off_loop(
    request: web.Request, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Runs `work`, in a thread if the request's body is long, so that other streams go on."""
    size = request.content_length
    if size is not None and size <= INLINE_BODY_BYTES:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


async def generate(
    client: EngineClient, prompts: Sequence[list[int]], params: SamplingParams
) -> Deltas:
    """Deltas of all prompts as they come; a delta's index counts the choices of
    the prompts before its own too, n each.

    Closing it aborts what still runs. The first failure ends it, and aborts the others.
    """
    if len(prompts) == 1:
        async with aclosing(_one(client, 0, prompts[0], params)) as deltas:
            async for delta in deltas:
                yield delta
        return

    # A full queue holds the pumps back: a slow reader costs one delta a prompt here.
    queue: asyncio.Queue[CompletionDelta | Exception | None] = asyncio.Queue(len(prompts))

    async def pump(index: int, prompt: list[int]) -> None:
        try:
            async with aclosing(_one(client, index, prompt, params)) as deltas:
                async for delta in deltas:
                    await queue.put(delta)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    pumps = [asyncio.create_task(pump(i, prompt)) for i, prompt in enumerate(prompts)]
    running = len(pumps)
    try:
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _one(
    client: EngineClient, index: int, prompt: list[int], params: SamplingParams
) -> Deltas:
    record = current()
    record.prompt_tokens += len(prompt)
    async with aclosing(
        client.generate(prompt, params, request_id=record.id, cache_salt=record.salt())
    ) as deltas:
        async for delta in deltas:
            record.completion_tokens += len(delta.token_ids)
            if delta.finish_reason == "abort":
                raise EngineError("it was aborted")
            yield replace(delta, index=index * params.n + delta.index) if index else delta


async def gather(deltas: Deltas, num_choices: int) -> list[CompletionOutput]:
    """Waits for the whole of every choice."""
    pieces: list[list[CompletionDelta]] = [[] for _ in range(num_choices)]
    async with aclosing(deltas):
        async for delta in deltas:
            pieces[delta.index].append(delta)
    if any(not choice or choice[-1].finish_reason is None for choice in pieces):
        raise EngineError("its output ended without a finish reason")
    return list(map(CompletionOutput.join, pieces))


def best(outputs: Sequence[CompletionOutput], made: int, wanted: int) -> list[CompletionOutput]:
    """Of each `made` outputs in a row the `wanted` likeliest by token, numbered anew."""

    def per_token(output: CompletionOutput) -> float:
        return (output.cumulative_logprob or 0.0) / max(len(output.token_ids), 1)

    kept = [
        output
        for first in range(0, len(outputs), made)
        for output in sorted(outputs[first : first + made], key=per_token, reverse=True)[:wanted]
    ]
    return [replace(output, index=index) for index, output in enumerate(kept)]


async def stream(
    request: web.Request,
    deltas: Deltas,
    to_chunks: Callable[[CompletionDelta], Iterable[msgspec.Struct]],
    usage_chunk: Callable[[Usage], msgspec.Struct] | None,
    prompt_tokens: int,
) -> web.StreamResponse:
    """Sends each delta as the chunks it makes, then the usage if it is wanted.

    The response's headers wait for the first delta: whatever fails before has a status code.
    """
    completion_tokens = 0
    async with EventStream(request) as events, aclosing(deltas):
        async for delta in deltas:
            completion_tokens += len(delta.token_ids)
            await events.send(*to_chunks(delta))
        if usage_chunk:
            await events.send(usage_chunk(Usage.of(prompt_tokens, completion_tokens)))
        await events.done()
    return events.response


def json_response(answer: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


def count_usage(prompts: Sequence[list[int]], outputs: Sequence[CompletionOutput]) -> Usage:
    return Usage.of(sum(map(len, prompts)), sum(len(output.token_ids) for output in outputs))
