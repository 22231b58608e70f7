"""One warm engine on the tiny Llama that the tests of this folder share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxserve.engine.frontend.llm import LLM

_SETTINGS = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
    "kv_cache_memory": 2**20,
    "forbid_compile": True,
}


@pytest.fixture(scope="session")
def llm(tiny_llama: Path) -> Iterator[LLM]:
    llm = LLM(str(tiny_llama), progress=False, **_SETTINGS)
    yield llm
    assert llm.core.compiles == 0
    llm.core.close()


@pytest.fixture(scope="session")
def roomy(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """The same model with a context of 512 tokens, with room for 64 sequences of them."""
    folder = tmp_path_factory.mktemp("long") / "llama"
    shutil.copytree(tiny_llama, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 512}))
    llm = LLM(
        str(folder),
        progress=False,
        max_num_seqs=64,
        max_num_batched_tokens=96,
        kv_cache_memory=2**24,
        forbid_compile=True,
    )
    yield llm
    assert llm.core.compiles == 0
    llm.core.close()


@pytest.fixture(scope="session")
def prompts(tiny_llama_golden: dict[str, Any]) -> list[list[int]]:
    names = sorted(n for n in tiny_llama_golden if n.startswith("prompt_"))
    return [tiny_llama_golden[n].tolist() for n in names]


@pytest.fixture(scope="session")
def llm_settings() -> dict[str, Any]:
    """The settings of `llm`, for engines that share its compiled programs."""
    return _SETTINGS
