"""OpenAI's own client: what it parsed or streamed goes back as history."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.jaxserve.server.clients.conftest import Weather

USER: Any = {"role": "user", "content": "hi"}


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)


TOOL: Any = openai.pydantic_function_tool(Weather)


def after(client: openai.OpenAI, message: Any) -> None:
    """A second turn, with an answer as the client has it."""
    history = [USER, message]
    for call in getattr(message, "tool_calls", None) or []:
        history.append({"role": "tool", "tool_call_id": call.id, "content": "warm"})
    for turn in (message, message.model_dump(), message.model_dump(exclude_none=True)):
        history[1] = turn
        done = client.chat.completions.create(
            model="tiny", messages=[*history, USER], max_tokens=1, tools=[TOOL]
        )
        assert done.choices[0].finish_reason in ("length", "stop", "tool_calls")


def test_parsed_calls(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="tiny",
        messages=[USER],
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        max_completion_tokens=200,
        temperature=0,
    )
    message = answer.choices[0].message
    assert message.tool_calls
    assert isinstance(message.tool_calls[0].function.parsed_arguments, Weather)
    after(client, message)


def test_a_parsed_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="tiny", messages=[USER], response_format=Weather, max_tokens=200, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, Weather)
    after(client, answer.choices[0].message)


def test_streamed_calls(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny",
        messages=[USER],
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=200,
        temperature=0,
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls
    after(client, message)


def test_items_of_a_response(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "name": "Weather", "strict": True}
    tool["parameters"] = TOOL["function"]["parameters"]
    asked: Any = {"model": "tiny", "tools": [tool], "include": ["reasoning.encrypted_content"]}
    first = client.responses.create(
        **asked, input="hi", tool_choice="required", max_output_tokens=200, store=False
    )
    items: list[Any] = [{"role": "user", "content": "hi"}, *first.output]
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "warm"}
        for item in first.output
        if item.type == "function_call"
    ]
    assert results
    second = client.responses.create(**asked, input=[*items, *results], max_output_tokens=4)
    assert second.status in ("completed", "incomplete")
    again = [item.model_dump() for item in (*first.output, *second.output)]
    third = client.responses.create(**asked, input=[*again, *results], max_output_tokens=4)
    assert third.status in ("completed", "incomplete")
