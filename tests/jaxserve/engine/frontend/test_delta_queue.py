"""A reader gets everything once, in order, however late it takes it."""

from __future__ import annotations

import asyncio

import pytest

from jaxserve.engine.frontend.delta_queue import DeltaQueue
from jaxserve.errors import EngineError
from jaxserve.outputs import CompletionDelta, TokenLogprobs


def delta(index: int, text: str, end: bool = False) -> CompletionDelta:
    logprobs = (TokenLogprobs(ord(text), -1.0, 1, ()),) if text else None
    return CompletionDelta(index, text, (ord(text),), "stop" if end else None, logprobs=logprobs)


async def test_what_came_meanwhile_is_one_delta_a_choice() -> None:
    queue = DeltaQueue(1)
    for index, text in ((0, "a"), (1, "x"), (0, "b"), (0, "c")):
        queue.put(delta(index, text))
    first, second = await queue.take()
    assert (first.index, first.text, first.token_ids) == (0, "abc", (97, 98, 99))
    assert [entry.token_id for entry in first.logprobs or ()] == [97, 98, 99]
    assert second == delta(1, "x")


async def test_a_reader_that_waits_is_woken() -> None:
    queue = DeltaQueue(1)
    reader = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    assert not reader.done()
    queue.put(delta(0, "a", end=True))
    assert await reader == [delta(0, "a", end=True)]
    queue.end_request()
    assert not queue.has_more


async def test_an_error_comes_after_what_was_there() -> None:
    queue = DeltaQueue(1)
    queue.put(delta(0, "a"))
    queue.fail(EngineError("gone"))
    queue.fail(EngineError("twice"))
    queue.end_request()
    assert queue.has_more
    assert await queue.take() == [delta(0, "a")]
    with pytest.raises(EngineError, match="gone"):
        await queue.take()
