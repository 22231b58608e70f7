"""smolagents: an agent that calls a tool and ends with another."""

from __future__ import annotations

from typing import Any

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: its name.
    """
    return f"warm in {city}"


def test_every_step_of_an_agent_is_served(long_url: str) -> None:
    model = OpenAIServerModel(
        "tiny", api_base=long_url, api_key="none", max_tokens=60, temperature=0
    )
    agent: Any = ToolCallingAgent(tools=[weather], model=model, max_steps=2, verbosity_level=0)
    agent.run("What is the weather?")
    errors = [str(step.error) for step in agent.memory.steps if getattr(step, "error", None)]
    # A random model may cut its call off; but no request may be refused.
    assert not any("Error code: 4" in error or "Error code: 5" in error for error in errors)
