"""A reader gets everything once, in order, however late it comes."""

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
    mailbox = DeltaQueue(1)
    for index, text in ((0, "a"), (1, "x"), (0, "b"), (0, "c")):
        mailbox.put(delta(index, text))
    first, second = await mailbox.take()
    assert (first.index, first.text, first.token_ids) == (0, "abc", (97, 98, 99))
    assert [entry.token_id for entry in first.logprobs or ()] == [97, 98, 99]
    assert second == delta(1, "x")


async def test_a_reader_that_waits_is_woken() -> None:
    mailbox = DeltaQueue(1)
    reader = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    assert not reader.done()
    mailbox.put(delta(0, "a", end=True))
    assert await reader == [delta(0, "a", end=True)]
    mailbox.running = 0
    assert not mailbox.more


async def test_an_error_comes_after_what_was_there() -> None:
    mailbox = DeltaQueue(1)
    mailbox.put(delta(0, "a"))
    mailbox.fail(EngineError("gone"))
    mailbox.fail(EngineError("twice"))
    mailbox.running = 0
    assert mailbox.more
    assert await mailbox.take() == [delta(0, "a")]
    with pytest.raises(EngineError, match="gone"):
        await mailbox.take()
