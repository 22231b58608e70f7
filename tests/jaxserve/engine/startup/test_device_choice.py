"""A CPU is never used in place of a GPU without being asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxserve.engine.startup.device_choice import OLDEST_DRIVER, gpu_problem

GENERATE = (
    "from jaxserve import LLM, SamplingParams\n"
    "llm = LLM({!r}, progress=False, kv_cache_memory=2**20, device={!r})\n"
    "print(len(llm.generate('hi', SamplingParams(max_tokens=2, ignore_eos=True))[0]"
    ".outputs[0].token_ids))\n"
)


def generate(model: Path, device: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", GENERATE.format(str(model), device)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def cuda_plugin(tmp_path: Path) -> Path:
    """A folder with a distribution that is jax's CUDA plugin by name, and can't be loaded."""
    (tmp_path / "broken_cuda_plugin.py").write_text(
        "def initialize():\n    raise OSError('libcudart.so.13: cannot open shared object file')\n"
    )
    info = tmp_path / "jax_cuda13_plugin-0.11.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: jax-cuda13-plugin\nVersion: 0.11.2\n"
    )
    (info / "entry_points.txt").write_text("[jax_plugins]\nxla_cuda13 = broken_cuda_plugin\n")
    return tmp_path


@pytest.mark.slow
def test_a_plugin_that_can_not_be_used_is_an_error(tiny_llama: Path, cuda_plugin: Path) -> None:
    path = os.pathsep.join((str(cuda_plugin), os.environ.get("PYTHONPATH", "")))
    done = generate(tiny_llama, "auto", PYTHONPATH=path, JAX_PLATFORMS="")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("jaxserve.errors.ConfigError: jax-cuda13-plugin 0.11.2 ")
    assert last.endswith("or choose the CPU with --device cpu")
    by_name = generate(tiny_llama, "cpu", PYTHONPATH=path, JAX_PLATFORMS="")
    assert (by_name.returncode, by_name.stdout) == (0, "2\n"), by_name.stderr


def test_a_cpu_alone_needs_no_choice() -> None:
    assert gpu_problem(None, visible=False, driver=None, error="") is None


def test_each_problem_names_the_driver_and_the_change() -> None:
    plugin = "jax-cuda13-plugin 0.11.2"
    missing = gpu_problem(None, visible=True, driver="580.95.05", error="")
    assert missing is not None
    assert "580.95.05" in missing
    assert "install jaxserve[cuda13]" in missing
    hidden = gpu_problem(plugin, visible=False, driver="580.95.05", error="")
    assert hidden is not None
    assert "sees no NVIDIA GPU" in hidden
    assert "--gpus all" in hidden
    old = gpu_problem(plugin, visible=True, driver="550.54.15", error="CUDA driver is insufficient")
    assert old is not None
    assert "550.54.15" in old
    assert ": CUDA driver is insufficient." in old
    assert f"needs driver {OLDEST_DRIVER['13']} or newer" in old
    assert "install jaxserve[cuda12]" in old
