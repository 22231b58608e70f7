"""Settings that tests of whole processes share, so that they share compiled programs too."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def small_engine() -> tuple[str, ...]:
    """Flags of an engine with few shapes to compile; everything else is as a user has it."""
    return (
        *("--max-model-len", "1024", "--max-num-seqs", "4", "--max-num-batched-tokens", "64"),
        *("--kv-cache-memory", "256MiB"),
    )
