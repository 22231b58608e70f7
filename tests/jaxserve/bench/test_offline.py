"""The offline benchmarks and the start-up on the tiny Llama, whose tokens are bytes."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from jaxserve.bench.offline import latency, throughput
from jaxserve.bench.settings import DatasetConfig, LatencyConfig
from jaxserve.bench.startup_time import seconds_to_ready, startup
from jaxserve.cli import flags
from jaxserve.config import EngineConfig, cache_dir
from jaxserve.errors import ConfigError, EngineDeadError

pytestmark = pytest.mark.slow


@pytest.fixture
def engine(tiny_llama: Path) -> EngineConfig:
    """The shapes of the engine that the tests in tests/jaxserve/engine share."""
    return EngineConfig(
        str(tiny_llama), max_num_seqs=8, max_num_batched_tokens=32, kv_cache_memory=2**20
    )


def test_throughput(engine: EngineConfig) -> None:
    dataset = DatasetConfig(num_prompts=10, input_tokens=4, output_tokens=6)
    figures = throughput(engine, dataset, progress=False)
    assert (figures["completed"], figures["output_tokens"]) == (10, 60)
    prompt, seconds = figures["prompt_tokens"], figures["duration_s"]
    assert isinstance(prompt, int)
    assert isinstance(seconds, float)
    assert 10 * 4 * 4 < prompt < 10 * 4 * 8
    assert figures["total_tokens_per_s"] == pytest.approx((prompt + 60) / seconds, rel=0.1)


def test_latency(engine: EngineConfig) -> None:
    config = LatencyConfig(batch_size=2, input_tokens=4, output_tokens=3, iters=3)
    figures = latency(engine, config, progress=False)
    least, median, mean = (figures[f"{s}_e2el_ms"] for s in ("min", "median", "mean"))
    assert 0 < least <= min(median, mean)  # type: ignore[operator]


def test_a_start_is_timed_and_leaves_nothing(engine: EngineConfig) -> None:
    """Uses the programs that other tests have compiled; startup() would compile them again."""
    words = flags.words(replace(engine, model=EngineConfig().model))
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before, began = children.read_text(), time.perf_counter()
    seconds = seconds_to_ready(Path(engine.model), words, str(cache_dir()))
    assert 0 < seconds < time.perf_counter() - began
    assert children.read_text() == before


def test_a_server_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineDeadError, match="ended before it was ready"):
        startup(tmp_path / "nowhere", [], warm_rounds=1)


def test_conversations_need_a_server(engine: EngineConfig) -> None:
    with pytest.raises(ConfigError, match="bench serve"):
        throughput(engine, DatasetConfig("multi-turn"), progress=False)
