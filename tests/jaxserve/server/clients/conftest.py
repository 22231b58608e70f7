"""A server for other people's clients, and what they get from it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.jaxserve.server.conftest import ServerProcess

# LiteLLM would fetch its table of prices; the Agents SDK would send traces.
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1"}


class Weather(BaseModel):
    """What the weather is like."""

    city: Literal["Rome", "Paris"]
    warm: bool


@pytest.fixture
def url(tiny_server: Any) -> str:
    return f"{tiny_server.url}/v1"


@pytest.fixture
def long_url(tiny_flags: tuple[str, ...], tmp_path: Path) -> Iterator[str]:
    """A server with a context for prompts of thousands of tokens."""
    folder = tmp_path / "long"
    shutil.copytree(tiny_flags[0], folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 16_384}))
    server = ServerProcess.launch(str(folder), *tiny_flags[1:], "--kv-cache-memory", "16MiB")
    try:
        server.wait_ready()
        yield f"{server.url}/v1"
    finally:
        server.stop()


class Statuses(list[int]):
    """The statuses of all answers that an httpx client got; give `hook` to its event hooks."""

    async def hook(self, response: Any) -> None:
        self.append(response.status_code)

    def hook_now(self, response: Any) -> None:
        self.append(response.status_code)


@pytest.fixture
def statuses() -> Statuses:
    return Statuses()
