"""EventFeed: gives what the engine does to readers; without any, nothing is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from jaxserve.engine.frontend.engine_view import EngineView, Snapshot
from jaxserve.server.observability.feed_reader import FeedReader

if TYPE_CHECKING:
    from jaxserve.engine.frontend.client import EngineClient


class EventFeed:
    """Without readers it holds nothing, and the engine records nothing.

    Args:
        client: returns the current client; a restarted engine has a new one.
    """

    def __init__(self, client: Callable[[], EngineClient]) -> None:
        self._client = client
        self._view = EngineView(0)
        self._readers: dict[FeedReader, asyncio.Event] = {}
        self.closed = False

    def close(self) -> None:
        """Ends all streams; further ones end at once."""
        self.closed = True
        for news in self._readers.values():
            news.set()

    def restart(self) -> None:
        """The engine is a new one."""
        if self._readers:
            self._watch()

    async def events(self, idle_s: float) -> AsyncGenerator[dict[str, Any] | None]:
        """What one reader is told, until the feed is closed; None after idle_s seconds without
        news. What changes between two events is in the second."""
        with self._reading() as (reader, news):
            while not self.closed:
                try:
                    async with asyncio.timeout(idle_s):
                        await news.wait()
                except TimeoutError:
                    yield None
                    continue
                if self.closed:
                    return
                yield self._head(reader) | reader.event() | self._figures()
                if not reader.has_news:
                    news.clear()

    @contextmanager
    def _reading(self) -> Iterator[tuple[FeedReader, asyncio.Event]]:
        if not self._readers:
            self._watch()
        reader, news = FeedReader(self._view), asyncio.Event()
        self._readers[reader] = news
        if self._view.is_known:
            news.set()
        try:
            yield reader, news
        finally:
            del self._readers[reader]
            if not self._readers:
                self._client().watch(None)
                self._view = EngineView(0)

    def _watch(self) -> None:
        self._view = EngineView(self._client().ready.num_blocks)
        for reader, news in self._readers.items():
            reader.restart(self._view)
            news.clear()
        self._client().watch(self._take)

    def _take(self, snapshot: Snapshot) -> None:
        self._view.take(snapshot.changes)
        for reader, news in self._readers.items():
            reader.note(snapshot)
            news.set()

    def _head(self, reader: FeedReader) -> dict[str, Any]:
        """What never changes, for the first event."""
        if not reader.is_first:
            return {}
        client = self._client()
        ready = client.ready
        return {
            "first": True,
            "model": client.model_name,
            "num_blocks": ready.num_blocks,
            "block_size": client.config.block_size,
            "token_budget": ready.max_num_batched_tokens,
            "max_num_seqs": ready.max_num_seqs,
            "windows": ready.windows,
        }

    def _figures(self) -> dict[str, Any]:
        stats = self._client().stats
        return {"stats": asdict(stats.scheduler) | {"compiles": stats.compiles}}
