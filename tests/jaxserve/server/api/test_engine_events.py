"""/v1/engine/events of real servers: what a reader sees of requests."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from bench.common.server_client import events_of
from jaxserve.server.api.engine_events import EngineEvent
from tests.jaxserve.server.event_state import EventState

pytestmark = pytest.mark.slow

EVENTS = "/v1/engine/events"
# Only against hanging; nothing is measured.
LIMIT = aiohttp.ClientTimeout(total=600)
BODY = {"model": "tiny", "prompt": "a", "ignore_eos": True, "max_tokens": 200}


class Reader:
    """Reads the stream in the background."""

    def __init__(self) -> None:
        self.state, self.raw = EventState(), ""
        self._news = asyncio.Condition()
        self.ended = False

    async def read(self, response: aiohttp.ClientResponse) -> None:
        async for event in events_of(response):
            async with self._news:
                self.raw += json.dumps(event)
                self.state.take(event)
                self._news.notify_all()
        async with self._news:
            self.ended = True
            self._news.notify_all()

    async def until(self, holds: Callable[[EventState], Any]) -> Any:
        """Waits until something holds of the state; what it is."""
        async with self._news, asyncio.timeout(300):
            while not (found := holds(self.state)):
                assert not self.ended, "the stream ended"
                await self._news.wait()
        return found


@asynccontextmanager
async def reading(http: aiohttp.ClientSession, **headers: str) -> AsyncIterator[Reader]:
    reader = Reader()
    async with http.get(EVENTS, headers=headers) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        task = asyncio.create_task(reader.read(response))
        try:
            await reader.until(
                lambda state: len(state.blocks) == state.about.get("num_blocks", 0) - 1
            )
            yield reader
        finally:
            task.cancel()


@pytest.fixture
async def http(tiny_server: Any) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(tiny_server.url, timeout=LIMIT) as session:
        yield session


async def complete(http: aiohttp.ClientSession, name: str, **body: Any) -> Any:
    headers = {"X-Request-Id": name}
    async with http.post("/v1/completions", json=BODY | body, headers=headers) as response:
        assert response.status == 200, await response.text()
        return await response.json()


def named(state: EventState, name: str) -> list[int]:
    return [key for key, start in state.sequences.items() if start[0] == name]


async def test_choices_share_blocks_and_copy_the_one_they_write_to(
    http: aiohttp.ClientSession,
) -> None:
    prompt = "shared by all of them " * 4  # 88 tokens: 5 blocks and a half
    async with reading(http) as reader:
        assert reader.state.about["model"]
        assert reader.state.about["block_size"] == 16
        assert reader.state.about["token_budget"] == 32
        copied = reader.state.stats["copies"]
        task = asyncio.create_task(complete(http, "four", prompt=prompt, n=4, max_tokens=500))
        keys = await reader.until(
            lambda state: (
                (keys := named(state, "four"))[3:]
                and all(len(state.tables.get((key, 0), ())) > 6 for key in keys)
                and keys
            )
        )
        state = reader.state
        tables = [state.tables[key, 0] for key in keys]
        assert len({tuple(table[:5]) for table in tables}) == 1
        assert len({block for table in tables for block in table[5:]}) == sum(
            len(table) - 5 for table in tables
        )
        assert {state.blocks[block] for block in tables[0][:5]} == {4}
        await task
        await reader.until(lambda state: not state.sequences)
        assert state.stats["copies"] - copied == 3
        # All had the sixth block; one of them still has it.
        sixth = {table[5] for table in tables}
        ((original,),) = [{source for source, _ in state.copies}]
        assert {to for _, to in state.copies} == sixth - {original}
        assert len(state.copies) == 3
        assert set(state.blocks.values()) == {0, -1}
        assert state.stats["running"] == 0
        assert all(step[3] > 0 and step[4] >= 0 for step in state.steps)


async def test_a_preemption_shows(http: aiohttp.ClientSession) -> None:
    async with reading(http) as reader:
        room = 16 * (reader.state.about["num_blocks"] - 1)
        assert 3 * 500 < room < 3 * 1000  # three prompts fit, but not with their outputs
        prompts = [f"{n}" + "x" * 499 for n in range(3)]
        several = [
            complete(http, f"p{prompt[0]}", prompt=prompt, max_tokens=500) for prompt in prompts
        ]
        await asyncio.gather(*several)
        await reader.until(lambda state: state.preempted and not state.sequences)
        assert set(reader.state.preempted) <= {"p0", "p1", "p2"}
        assert reader.state.stats["preemptions"] > 0


async def test_readers_come_and_go_and_agree(http: aiohttp.ClientSession) -> None:
    async with reading(http) as first:
        task = asyncio.create_task(complete(http, "seen-by-both", max_tokens=600))
        await first.until(lambda state: named(state, "seen-by-both"))
        async with reading(http) as second:
            await second.until(lambda state: named(state, "seen-by-both"))
        await task
        await first.until(lambda state: not state.sequences)
        async with reading(http) as third:
            assert third.state.blocks == first.state.blocks


async def test_neither_text_nor_tokens_are_told(http: aiohttp.ClientSession) -> None:
    async with reading(http) as reader:
        answer = await complete(http, "quiet", prompt="a secret word", max_tokens=600)
        await reader.until(lambda state: state.steps and not state.sequences)
    assert "secret" not in reader.raw
    assert answer["choices"][0]["text"]
    # All that is text are names: of fields, of requests and of the model.
    words = set(re.findall(r'"([^"]*)"', reader.raw))
    fields = {field.name for field in msgspec.structs.fields(EngineEvent)}
    assert words - fields - set(reader.state.stats) == {"quiet", reader.state.about["model"]}


async def test_waiting_requests_are_told(http: aiohttp.ClientSession) -> None:
    async with reading(http) as reader:
        tasks = [
            asyncio.create_task(complete(http, f"w{n}", max_tokens=60, priority=n))
            for n in range(20)
        ]
        head = await reader.until(lambda state: state.waiting)
        assert {name for name, *_ in head} <= {f"w{n}" for n in range(20)}
        await asyncio.gather(*tasks)
        await reader.until(lambda state: not state.waiting and not state.sequences)


async def test_a_stop_ends_the_stream(start_tiny: Callable[..., Any]) -> None:
    server = start_tiny("--drain-timeout", "600", "--api-key", "secret")
    async with aiohttp.ClientSession(server.url, timeout=LIMIT) as http:
        async with http.get(EVENTS) as response:
            assert response.status == 401
        async with reading(http, Authorization="Bearer secret") as reader:
            server.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(300):  # below the drain's timeout
                while not reader.ended:
                    await asyncio.sleep(0.05)
        assert server.wait() == 0


async def test_readers_of_several_processes_see_the_requests_of_all(
    start_tiny: Callable[..., Any],
) -> None:
    server = start_tiny("--api-workers", "2")
    connector = aiohttp.TCPConnector(force_close=True)
    async with (
        aiohttp.ClientSession(server.url, timeout=LIMIT, connector=connector) as http,
        AsyncExitStack() as stack,
    ):
        # The kernel spreads connections, so that both processes have readers.
        readers = [await stack.enter_async_context(reading(http)) for _ in range(8)]
        task = asyncio.create_task(complete(http, "one", max_tokens=600))
        for reader in readers:
            await reader.until(lambda state: named(state, "one"))
        await task
        for reader in readers:
            await reader.until(lambda state: not state.sequences)
            assert reader.state.blocks == readers[0].state.blocks


async def test_a_restarted_engine_is_seen(start_tiny: Callable[..., Any]) -> None:
    server = start_tiny("--engine-restarts", "1")
    async with aiohttp.ClientSession(server.url, timeout=LIMIT) as http, reading(http) as reader:
        await complete(http, "before", max_tokens=40)
        await reader.until(lambda state: -1 in state.blocks.values())
        os.kill(server.engine_pid, signal.SIGKILL)
        await reader.until(lambda state: set(state.blocks.values()) == {0})
        await complete(http, "after", max_tokens=40)
        await reader.until(lambda state: -1 in state.blocks.values())
