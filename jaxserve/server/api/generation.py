"""What chat and text completions share: from batches of deltas to answers and streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import msgspec
from aiohttp import web

from jaxserve.errors import EngineError
from jaxserve.outputs import CompletionDelta
from jaxserve.sampling.params import SamplingParams
from jaxserve.server.observability.request_log import current
from jaxserve.server.wire.answers import Usage
from jaxserve.server.wire.errors import ApiError
from jaxserve.server.wire.sse import DONE, EventStream, error_event

if TYPE_CHECKING:
    from jaxserve.server.context import Serving
    from jaxserve.server.wire.requests import GenerationRequest

# A longer body is tokenized in a thread (tokenizers lets go of the GIL): about 2 ms of work.
INLINE_BODY_BYTES = 16_384

P = ParamSpec("P")
R = TypeVar("R")
Batches = AsyncGenerator[list[CompletionDelta], None]


async def off_loop(
    request: web.Request, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Runs `work`, in a thread if the request's body is long, so that other streams go on."""
    size = request.content_length
    if size is not None and size <= INLINE_BODY_BYTES:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


@dataclass(slots=True)
class TokenCount:
    """Tokens of a request: of its prompts, of its outputs so far, and of those the prefix cache
    had."""

    prompt: int
    completion: int = 0
    cached: int = 0

    def add(self, delta: CompletionDelta) -> None:
        self.completion += len(delta.token_ids)
        self.cached += delta.cached_tokens or 0

    def usage(self) -> Usage:
        return Usage.of(self.prompt, self.completion, self.cached)


def submit(
    serving: Serving,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    priority: int = 0,
    cache_salt: str | None = None,
) -> Batches:
    """Starts generating, on behalf of the HTTP request that this task serves."""
    record = current()
    return serving.client.stream(
        prompts,
        params,
        request_id=record.id,
        priority=priority,
        cache_salt=record.salt(cache_salt),
    )


async def gather(batches: Batches, num_choices: int, count: TokenCount) -> list[CompletionDelta]:
    """Waits for the whole of every choice."""
    pieces: list[list[CompletionDelta]] = [[] for _ in range(num_choices)]
    current().tokens = count
    async with aclosing(batches):
        async for batch in batches:
            for delta in batch:
                count.add(delta)
                pieces[delta.index].append(delta)
    if any(not choice or choice[-1].finish_reason is None for choice in pieces):
        raise EngineError("its output ended without a finish reason")
    return list(map(CompletionDelta.join, pieces))


def best(outputs: Sequence[CompletionDelta], made: int, wanted: int) -> list[CompletionDelta]:
    """Of each `made` outputs in a row the `wanted` likeliest by token, numbered anew."""

    def per_token(output: CompletionDelta) -> float:
        return sum(entry.logprob for entry in output.logprobs or ()) / max(len(output.token_ids), 1)

    kept = [
        output
        for first in range(0, len(outputs), made)
        for output in sorted(outputs[first : first + made], key=per_token, reverse=True)[:wanted]
    ]
    return [replace(output, index=index) for index, output in enumerate(kept)]


async def stream(
    request: web.Request,
    batches: Batches,
    to_events: Callable[[CompletionDelta], Iterable[bytes]],
    last_events: Callable[[], Iterable[bytes]],
    count: TokenCount,
    on_error: Callable[[ApiError], bytes] = error_event,
) -> web.StreamResponse:
    """Sends each delta as the events it makes, then the last events.

    What has come while the reader was away is written at once. The response's headers wait for
    the first delta: whatever fails before has a status code.
    """
    current().tokens = count
    async with EventStream(request, on_error) as events, aclosing(batches):
        async for batch in batches:
            written: list[bytes] = []
            for delta in batch:
                count.add(delta)
                written += to_events(delta)
            await events.write(b"".join(written))
        await events.end(b"".join(last_events()))
    return events.response


def chunk_usage(
    body: GenerationRequest, count: TokenCount
) -> Callable[[], Usage | msgspec.UnsetType | None]:
    """What a chunk with choices says of usage: the counts so far, or nothing yet, or nothing."""
    if body.continuous_usage:
        return count.usage
    return lambda: None if body.include_usage else msgspec.UNSET


def closing_events(
    usage_event: Callable[[Usage], bytes] | None, count: TokenCount
) -> Callable[[], list[bytes]]:
    """The last events of chats and completions: the usage if it is wanted, and [DONE]."""
    return lambda: ([usage_event(count.usage())] if usage_event else []) + [DONE]


def json_response(answer: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
