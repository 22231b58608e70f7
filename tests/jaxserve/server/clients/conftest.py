"""A server for other people's clients, and what they get from it."""

from __future__ import annotations

import os
from typing import Any, Literal

import pytest
from pydantic import BaseModel

# LiteLLM would fetch its table of prices; the Agents SDK would send traces.
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1"}


class Weather(BaseModel):
    """What the weather is like."""

    city: Literal["Rome", "Paris"]
    warm: bool


@pytest.fixture
def url(tiny_server: Any) -> str:
    return f"{tiny_server.url}/v1"


class Statuses(list[int]):
    """The statuses of all answers that an httpx client got; give `hook` to its event hooks."""

    async def hook(self, response: Any) -> None:
        self.append(response.status_code)

    def hook_now(self, response: Any) -> None:
        self.append(response.status_code)


@pytest.fixture
def statuses() -> Statuses:
    return Statuses()
