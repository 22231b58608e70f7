"""GET /v1/engine/events: what the engine does, for people who watch it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import msgspec
from aiohttp import web

from jaxserve.server.context import SERVER_CONTEXT
from jaxserve.server.middleware.cors import refuse_cross_site
from jaxserve.server.wire.errors import unavailable
from jaxserve.server.wire.sse import EventStream, event

PERIOD_S = 0.1  # between events
BYTES_PER_S = 50_000  # of a stream
IDLE_S = 15.0  # without news, a comment shows that the stream is alive
COMMENT = b": nothing new\n\n"


class EngineEvent(msgspec.Struct, omit_defaults=True):
    """What has changed in block pool, block tables, queue and steps since the event before.

    Each field is there only if it has something to say. Blocks are numbered from 0, the null block;
    a key names a sequence for as long as it holds blocks.

    Args:
        first: all that was known before is void; the other fields of the server are there.
        model: its name.
        num_blocks: in the pool, the null block included.
        block_size: tokens that a block holds.
        token_budget: most tokens of a step.
        max_num_seqs: most sequences that run at once.
        windows: of each cache group, in tokens; null for full attention.
        ended: key, and whether it was preempted, of sequences that hold no blocks any more.
        started: key, request id, index of the choice, prompt tokens, and how many of them the
            prefix cache had.
        tables: key, cache group, leading entries that the window has left behind, index of the
            first entry that has changed; then the table from there on: block numbers, and -n for
            the n numbers that follow the last one.
        blocks: a state, then the blocks that have it now, in order: each number is the distance
            from the block before (the first: from 0), and -n stands for the n blocks that follow
            the last one. The state is the number of tables that hold a block, 0 for a free one,
            -1 for a free one that the prefix cache finds.
        tokens: key, planned and known tokens of sequences.
        waiting: request id, index, tokens and preemptions of the first in the queue.
        steps: number, decoded tokens, padded tokens, milliseconds on the device and
            on the host, and a list of key and tokens of the prompts computed (key -1: all others).
        skipped_steps: steps before these that are left out.
        copies: from and to of blocks that were copied before a write (copy-on-write), of these
            steps the last 16.
        stats: figures of the scheduler, and compilations since the server was ready.
    """

    first: bool = False
    model: str = ""
    num_blocks: int = 0
    block_size: int = 0
    token_budget: int = 0
    max_num_seqs: int = 0
    windows: list[int | None] = []
    ended: list[tuple[int, bool]] = []
    started: list[tuple[int, str, int, int, int]] = []
    tables: list[list[int]] = []
    blocks: list[list[int]] = []
    tokens: list[int] = []
    waiting: list[tuple[str, int, int, int]] | None = None
    steps: list[tuple[int, int, int, float, float, list[int]]] = []
    skipped_steps: int = 0
    copies: list[tuple[int, int]] = []
    stats: dict[str, int] = {}


@refuse_cross_site
async def engine_events(request: web.Request) -> web.StreamResponse:
    """Streams EngineEvents until the client leaves or the server stops."""
    feed = request.app[SERVER_CONTEXT].events
    if feed.closed:
        raise unavailable("the server is shutting down", "shutting_down")
    async with EventStream(request) as stream, aclosing(feed.events(IDLE_S)) as events:
        async for news in events:
            data = COMMENT if news is None else event(news)
            await stream.write(data)
            await asyncio.sleep(max(PERIOD_S, len(data) / BYTES_PER_S))
        await stream.end()
    return stream.response
