"""OpenAI's Agents SDK: a tool, its result, and an answer by a schema, over both APIs.

The model is tiny and random, so what it answers is left open; that each request of a run, with the
history as the SDK sends it back, is served is not.
"""

from __future__ import annotations

from typing import Any, Literal

import httpx
import pytest
from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI

from tests.jaxserve.server.clients.conftest import Statuses, Weather


@function_tool
def weather(city: Literal["Rome", "Paris"]) -> str:
    """The weather in a city."""
    return f"warm in {city}"


@pytest.mark.parametrize("api", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("schema", [Weather, str])
async def test_a_run_with_a_tool(
    url: str, statuses: Statuses, api: Any, streamed: bool, schema: type
) -> None:
    http = httpx.AsyncClient(event_hooks={"response": [statuses.hook]}, timeout=120)
    client = AsyncOpenAI(base_url=url, api_key="none", http_client=http, max_retries=0)
    agent = Agent(
        name="helper",
        instructions="Answer with the weather.",
        model=api("tiny", client),
        tools=[weather],
        output_type=schema,
        model_settings=ModelSettings(
            tool_choice="required", parallel_tool_calls=False, max_tokens=200, temperature=0.0
        ),
    )
    try:
        if streamed:
            result = Runner.run_streamed(agent, "hi", max_turns=2)
            async for _ in result.stream_events():
                pass
        else:
            await Runner.run(agent, "hi", max_turns=2)
    except (MaxTurnsExceeded, ModelBehaviorError):
        pass  # what a random model says
    assert statuses == [200, 200]
