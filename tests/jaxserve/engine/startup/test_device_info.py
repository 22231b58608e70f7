"""Settings of JAX and environments that the engine refuses, or runs in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

GENERATE = "from jaxserve import LLM; LLM({!r}, progress=False, kv_cache_memory=2**20)"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JAX_ENABLE_X64", "1"),
        ("JAX_DEBUG_NANS", "1"),
        ("JAX_DISABLE_JIT", "1"),
        ("JAX_TRANSFER_GUARD", "disallow"),
        ("JAX_PLATFORMS", "nonsense"),
        ("NUMBA_DISABLE_JIT", "1"),
    ],
)
def test_settings_of_jax_and_numba_that_nothing_runs_under_are_refused_by_name(
    tiny_llama: Path, name: str, value: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GENERATE.format(str(tiny_llama))],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("jaxserve.errors.ConfigError")
    assert f"unset {name}" in last


def test_a_user_without_a_home_has_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxserve.config import cache_dir

    for name in ("JAXSERVE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    assert cache_dir().is_absolute()
    assert str(os.getuid()) in cache_dir().name
