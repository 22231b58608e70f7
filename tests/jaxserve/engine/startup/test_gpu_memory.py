"""How much memory the pool gets on a GPU, which a CPU stands in for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxserve.config import MIB, EngineConfig
from jaxserve.engine.frontend.llm import LLM
from jaxserve.engine.startup import step_memory
from jaxserve.engine.startup.device_info import GPUS, DeviceInfo, memory_by_kind, prepare_gpu
from jaxserve.engine.startup.engine_limits import SLACK, rounded_blocks
from jaxserve.errors import ConfigError
from jaxserve.sampling.params import SamplingParams


@pytest.mark.slow
def test_the_pool_takes_what_a_measured_step_leaves(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = DeviceInfo(SLACK + 8 * MIB)
    monkeypatch.setattr(DeviceInfo, "here", classmethod(lambda cls, config: device))
    measured = []

    def measure(*args):  # type: ignore[no-untyped-def]
        measured.append(original(*args))
        return measured[-1]

    original = step_memory.measure
    monkeypatch.setattr(step_memory, "measure", measure)
    llm = LLM(str(tiny_llama), progress=False, max_num_seqs=2, max_num_batched_tokens=16)
    (step,) = measured
    runner = llm.core._runner
    weights = sum(leaf.nbytes for part in runner._params.groups for leaf in part)
    weights += sum(leaf.nbytes for leaf in runner._params.outer)
    tables = sum(table.nbytes for table in runner._state.tables)
    pool = sum(array.nbytes for buffer in runner._state.pages for array in buffer)
    block = pool // llm.core.ready.num_blocks
    # Two rows of logits over 272 tokens are in float32; a step can't do with less.
    assert 2 * 272 * 4 < step < MIB
    fitting = (8 * MIB - weights - tables - step) // block
    assert pool // block == rounded_blocks(fitting)
    done = llm.generate([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    assert len(done[0].outputs[0].token_ids) == 4
    llm.core.close()


def test_xla_is_given_the_share_unless_the_user_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    prepare_gpu(0.5)
    assert os.environ["XLA_CLIENT_MEM_FRACTION"] == "0.5"
    monkeypatch.delenv("XLA_CLIENT_MEM_FRACTION")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.25")  # XLA refuses both together
    prepare_gpu(0.5)
    assert "XLA_CLIENT_MEM_FRACTION" not in os.environ


@pytest.mark.slow
def test_no_import_of_the_engine_makes_a_client() -> None:
    """Settings of XLA have no effect once a client of it exists."""
    script = (
        "import jaxserve.engine.core.engine_process, jaxserve.engine.frontend.llm\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("kind", "gpu"),
    [  # as CUDA names the devices
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA H100 PCIe", "H100-80GB"),
        ("NVIDIA H200", "H200-141GB"),
    ],
)
def test_an_allocator_that_does_not_count_leaves_the_name(kind: str, gpu: str) -> None:
    config = EngineConfig(gpu_memory_utilization=0.5)
    assert memory_by_kind(kind, config) == GPUS[gpu] // 2


def test_an_unknown_gpu_without_counts_needs_the_size_of_the_pool() -> None:
    with pytest.raises(ConfigError, match=r"'NVIDIA L4' has: set --kv-cache-memory"):
        memory_by_kind("NVIDIA L4", EngineConfig())
    assert memory_by_kind("NVIDIA L4", EngineConfig(kv_cache_memory=MIB)) == 0


def test_a_pool_by_measured_memory_has_a_round_number_of_blocks() -> None:
    """A restart that measures a little more or less compiles nothing anew."""
    assert rounded_blocks(127) == 127
    assert rounded_blocks(255) == 254
    assert rounded_blocks(26_343) == rounded_blocks(26_300) == 26_112
    assert all(0.984 * n < rounded_blocks(n) <= n for n in range(1, 5000))
