"""Anthropic's own SDK, and requests as Claude Code sends them."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

HI: Any = {"role": "user", "content": "hi"}
TOOL: Any = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Paris"]}},
        "required": ["city"],
    },
}


@pytest.fixture
def client(tiny_server: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=tiny_server.url, api_key="none", max_retries=0, timeout=120)


def saying(text: str) -> dict[str, Any]:
    """Fields that make the model say a text."""
    return {
        "model": "tiny",
        "max_tokens": 200,
        "extra_body": {"structured_outputs": {"choice": [text]}},
    }


def test_a_message(client: anthropic.Anthropic) -> None:
    message = client.messages.create(messages=[HI], system="Be brief.", **saying("hello there"))
    (block,) = message.content
    assert block.type == "text"
    assert (block.text, message.stop_reason) == ("hello there", "end_turn")
    assert message.usage.output_tokens == len("hello there") + 1
    counted = client.messages.count_tokens(model="tiny", messages=[HI], system="Be brief.")
    cached = message.usage.cache_read_input_tokens or 0
    assert counted.input_tokens == message.usage.input_tokens + cached


def test_a_stream(client: anthropic.Anthropic) -> None:
    with client.messages.stream(messages=[HI], **saying("hello there")) as stream:
        assert "".join(stream.text_stream) == "hello there"
        message = stream.get_final_message()
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens == len("hello there") + 1


async def test_asynchronously(tiny_server: Any) -> None:
    async with (
        anthropic.AsyncAnthropic(base_url=tiny_server.url, api_key="none") as client,
        client.messages.stream(messages=[HI], **saying("hm")) as stream,
    ):
        assert "".join([text async for text in stream.text_stream]) == "hm"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_and_its_result(client: anthropic.Anthropic, streamed: bool) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    asked = {"messages": [HI], "tools": [TOOL], **saying(f"Let me see. {call}")}
    if streamed:
        with client.messages.stream(**asked) as stream:
            message = stream.get_final_message()
    else:
        message = client.messages.create(**asked)
    _, block = message.content
    assert block.type == "tool_use"
    assert (block.name, block.input, message.stop_reason) == (
        "weather",
        {"city": "Rome"},
        "tool_use",
    )
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "warm"}
    for turn in (message.content, [part.model_dump() for part in message.content]):
        after = client.messages.create(
            messages=[
                HI,
                {"role": "assistant", "content": turn},
                {"role": "user", "content": [result]},
            ],
            tools=[TOOL],
            **saying("It is warm."),
        )
        assert after.content[0].text == "It is warm."


def test_a_required_tool(client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        model="tiny",
        max_tokens=200,
        messages=[HI],
        tools=[TOOL],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    (block,) = [part for part in message.content if part.type == "tool_use"]
    assert block.input["city"] in ("Rome", "Paris")


def test_thinking(client: anthropic.Anthropic) -> None:
    asked = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "messages": [HI]}
    with client.messages.stream(**asked, **saying("<think>why</think>so")) as stream:
        thought, text = stream.get_final_message().content
    assert (thought.thinking, text.text) == ("why", "so")
    assert thought.signature


def test_errors(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as raised:
        client.messages.create(model="claude", max_tokens=1, messages=[HI])
    assert raised.value.body["error"]["type"] == "not_found_error"
    assert raised.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="stop_sequences"):
        client.messages.create(model="tiny", max_tokens=1, messages=[HI], stop_sequences=[""])


def test_as_claude_code_calls(client: anthropic.Anthropic) -> None:
    """The beta endpoint, system in cached blocks, labels, thinking, edits of the context, and more
    output than the context holds."""
    cached: Any = {"cache_control": {"type": "ephemeral"}}
    with client.beta.messages.stream(
        model="tiny",
        betas=["claude-code-20250219", "interleaved-thinking-2025-05-14"],
        max_tokens=32_000,
        system=[
            {"type": "text", "text": "You are an agent.", **cached},
            {"type": "text", "text": "Use your tools.", **cached},
        ],
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>Today.</system-reminder>"},
                    {"type": "text", "text": "hi", **cached},
                ],
            }
        ],
        tools=[TOOL | cached],
        thinking={"type": "enabled", "budget_tokens": 31_999},
        metadata={"user_id": "user_1_account__session_2"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        extra_body={"temperature": 1, "structured_outputs": {"choice": ["Hello!"]}},
    ) as stream:
        message = stream.get_final_message()
    assert [block.text for block in message.content if block.type == "text"] == ["Hello!"]
    assert message.stop_reason == "end_turn"
