"""The client of an engine in a process of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from jaxserve.config import EngineConfig
from jaxserve.engine.client import EngineClient
from jaxserve.engine.listener import Listener
from jaxserve.engine.messages import EngineStats
from jaxserve.errors import EngineDeadError
from jaxserve.sampling.params import SamplingParams

pytestmark = pytest.mark.slow


class Broken(Listener):
    def on_turn(self, stats: EngineStats) -> None:
        raise ValueError("no such gauge")


async def test_news_that_cannot_be_read_leave_nobody_waiting(
    tiny_llama: Path, llm_settings: dict[str, Any]
) -> None:
    client = await EngineClient.start(EngineConfig(str(tiny_llama), **llm_settings))
    client.listeners.append(Broken())
    try:
        async with asyncio.timeout(60):
            with pytest.raises(EngineDeadError):
                async for _ in client.generate([65], SamplingParams()):
                    pass
        assert not client.healthy
    finally:
        await client.close()
