"""The compiled step of Llama 3.1 8B: how many kernels, in place, in command buffers."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

LAYERS = 2


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None,
    reason="needs jax's CUDA plugin, but no GPU (make kernels holds the same limits)",
)
def test_the_compiled_step() -> None:
    command = [sys.executable, "-m", "bench.engine.compiled_steps", "--archs", "sm_90"]
    command += ["--layers", str(LAYERS), "--steps", "decode"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    kernels = figures["sm_90_decode_segment_kernels"]
    assert kernels <= 13 * LAYERS + 12
    assert figures["sm_90_decode_segment_buffered"] == kernels
    assert figures["sm_90_decode_segment_temp_bytes"] < 64 * 2**20
