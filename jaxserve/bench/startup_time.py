"""Times `jaxserve serve` from its start until it is ready."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from jaxserve.bench.report import Figures
from jaxserve.errors import EngineDeadError

STOP_SECONDS = 60.0


def startup(model: Path, flags: Sequence[str], warm_rounds: int) -> Figures:
    """Times a start without compiled programs, then `warm_rounds` starts with those that it stored.

    Args:
        model: a local path, so that no download is timed. The operating system may have its file
            in memory, in all rounds.
        flags: of `jaxserve serve`.

    Raises:
        EngineDeadError: a server ended before it was ready; its stderr, which is ours, says why.
    """
    with tempfile.TemporaryDirectory(prefix="jaxserve-bench-") as cache:
        cold_s = seconds_to_ready(model, flags, cache)
        stored = [file.stat().st_size for file in Path(cache).rglob("*") if file.is_file()]
        warm_s = [seconds_to_ready(model, flags, cache) for _ in range(warm_rounds)]
    return {
        "benchmark": "startup",
        "model": str(model),
        "cold_start_s": round(cold_s, 2),
        "mean_warm_start_s": round(statistics.fmean(warm_s), 2),
        "min_warm_start_s": round(min(warm_s), 2),
        "max_warm_start_s": round(max(warm_s), 2),
        "warm_rounds": warm_rounds,
        "compiled_cache_mib": round(sum(stored) / 2**20, 2),
    }


def seconds_to_ready(model: Path, flags: Sequence[str], cache: str) -> float:
    """Starts a server on a free port, and stops it once it is ready.

    Args:
        cache: folder of its compiled programs.
    """
    environment = os.environ | {"JAXSERVE_CACHE": cache}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # it would take precedence
    command = [sys.executable, "-m", "jaxserve.cli.main", "serve", str(model), *flags]
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("ready: "):
                    return time.perf_counter() - began
        finally:
            process.terminate()
            try:
                process.communicate(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
    raise EngineDeadError("the server ended before it was ready; its own messages are above")
