"""The client of an engine in a process of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import zmq

from jaxserve.config import EngineConfig
from jaxserve.engine.core.protocol import EngineStats
from jaxserve.engine.frontend.client import EngineClient
from jaxserve.engine.frontend.request_observer import RequestObserver, RequestTimes
from jaxserve.errors import EngineDeadError, ModelNotFoundError
from jaxserve.sampling.params import SamplingParams


class Broken(RequestObserver):
    def on_stats(self, stats: EngineStats) -> None:
        raise ValueError("no such gauge")


class Counting(RequestObserver):
    tokens = 0

    def on_first_tokens(self, times: RequestTimes, seconds: float, tokens: int) -> None:
        self.tokens += tokens

    def on_next_tokens(self, seconds: float, tokens: int) -> None:
        self.tokens += tokens


def test_the_front_end_loads_no_jax() -> None:
    """Neither the client nor LLM, before the first engine in this process is made."""
    script = (
        "import sys, jaxserve.engine.frontend.client, jaxserve.engine.frontend.llm\n"
        "assert not {'jax', 'jaxlib', 'flax'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


async def test_a_name_of_no_model_starts_no_process() -> None:
    with pytest.raises(ModelNotFoundError, match="smollm2-135mm: no such folder"):
        await EngineClient.start(EngineConfig("smollm2-135mm"), module="no.such.module")


async def test_an_address_that_cannot_be_bound_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100)  # the path of a Unix socket has at most 107 bytes
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(zmq.ZMQError):
        await EngineClient.start(EngineConfig(), module="no.such.module")
    assert not list(deep.iterdir())


@pytest.mark.slow
async def test_messages_that_cannot_be_read_fail_all_requests(
    tiny_llama: Path, llm_settings: dict[str, Any]
) -> None:
    client = await EngineClient.start(EngineConfig(str(tiny_llama), **llm_settings))
    client.observers.append(Broken())
    try:
        async with asyncio.timeout(60):
            with pytest.raises(EngineDeadError):
                async for _ in client.generate([65], SamplingParams()):
                    pass
        assert not client.healthy
    finally:
        await client.close()


async def test_tokens_after_a_stop_string_are_not_counted(tiny_llama: Path) -> None:
    """A fast engine sends many more before it receives the abort."""
    client = await EngineClient.start(EngineConfig(str(tiny_llama)), "tests.fake_engine")
    counting = Counting()
    client.observers.append(counting)
    params = SamplingParams(max_tokens=1000, stop=("~~~",))
    try:
        for _ in range(20):
            deltas = [delta async for delta in client.generate([65], params)]
            assert sum(len(delta.token_ids) for delta in deltas) == 3
    finally:
        await client.close()
    assert counting.tokens == 60
