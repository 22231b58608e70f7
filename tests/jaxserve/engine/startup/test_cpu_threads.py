"""How many threads compute on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

import cpu_kernels
from cpu_kernels.thread_pool import WORKER
from jaxserve.config import EngineConfig
from jaxserve.engine.startup.cpu_threads import use_threads
from jaxserve.errors import ConfigError

# Prints the threads of the kernels beside the calling one, and those of XLA's pool.
CHILD = """
import os, sys, threading
from pathlib import Path
from jaxserve import LLM, SamplingParams
llm = LLM(sys.argv[1], progress=False, max_model_len=64, kv_cache_memory=2**20, threads=3)
assert llm.generate(["hello"], SamplingParams(max_tokens=2))[0].outputs[0].token_ids
names = [Path(f"/proc/self/task/{t}/comm").read_text() for t in os.listdir("/proc/self/task")]
kernels = sum(t.name.startswith("jaxserve-kernels") for t in threading.enumerate())
print(kernels, sum("XLAEigen" in name for name in names))
llm.core.close()
"""


def test_a_number_of_threads_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="threads must be at least 1"):
        EngineConfig(threads=0)


def test_the_kernels_use_as_many_as_the_setting_says() -> None:
    for threads in (1, 4, None):
        use_threads(EngineConfig(threads=threads))
        names = [thread.name for thread in threading.enumerate()]
        count = 1 + sum(name.startswith(WORKER) for name in names)
        assert count == (threads or cpu_kernels.default_threads())


@pytest.mark.slow
def test_an_engine_limits_xlas_threads_too(tiny_llama: os.PathLike[str]) -> None:
    if not os.path.exists("/proc/self/task"):
        pytest.skip("this system doesn't tell its threads' names")
    environ = {n: v for n, v in os.environ.items() if n != "NPROC"}
    command = [sys.executable, "-c", CHILD, str(tiny_llama)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "3"]
