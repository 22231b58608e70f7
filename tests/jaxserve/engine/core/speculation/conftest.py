"""An engine that speculates, which the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxserve.engine.frontend.llm import LLM


@pytest.fixture(scope="session")
def engine(tiny_llama: Path, llm: LLM, llm_settings: dict[str, Any]) -> Iterator[LLM]:
    """An engine that speculates, with so few blocks that it preempts."""
    blocks = 14 * (2**20 // llm.core.ready.num_blocks)
    settings = llm_settings | {"kv_cache_memory": blocks}
    settings |= {"speculation": "ngram", "num_speculative_tokens": 3}
    engine = LLM(str(tiny_llama), progress=False, **settings)
    yield engine
    assert engine.core.compiles == 0
    engine.core.close()
