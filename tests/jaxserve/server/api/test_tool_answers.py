"""What counts as a tool call in an answer, and what stays content."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

LIMIT = aiohttp.ClientTimeout(total=120)  # only against hanging
TOOL = {"type": "function", "function": {"name": "f"}}
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


async def chat(server: Any, **fields: Any) -> tuple[int, Any]:
    messages = [{"role": "user", "content": "x"}]
    body = {"messages": messages, "max_tokens": 100, "temperature": 0, **fields}
    async with (
        aiohttp.ClientSession(server.url, timeout=LIMIT) as http,
        http.post("/v1/chat/completions", json=body) as response,
    ):
        return response.status, json.loads(await response.read())


async def test_json_that_names_no_offered_tool_is_an_answer(tiny_server: Any) -> None:
    text = '{"name": "Ada"}'
    for wrapped in (text, f"<tool_call>{text}</tool_call>", CALL.replace('"f"', '""')):
        status, answer = await chat(tiny_server, tools=[TOOL], guided_choice=[wrapped])
        assert status == 200
        assert answer["choices"][0]["message"]["content"] == wrapped
        assert not answer["choices"][0]["message"].get("tool_calls")


async def test_an_answer_by_a_schema_is_no_call(tiny_server: Any) -> None:
    compact = {"whitespace_flexible": False}  # or a random model may go on with white space
    call = {"const": {"name": "f", "arguments": {}}, "x-guidance": compact}
    schema = {"name": "s", "schema": call}
    form = {"type": "json_schema", "json_schema": schema}
    status, answer = await chat(tiny_server, tools=[TOOL], response_format=form)
    assert status == 200
    message = answer["choices"][0]["message"]
    assert json.loads(message["content"]) == {"name": "f", "arguments": {}}
    assert not message.get("tool_calls")
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
async def test_a_required_call_comes_before_a_response_format(
    tiny_server: Any, choice: Any
) -> None:
    asked = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
    status, answer = await chat(tiny_server, **asked, response_format={"type": "json_object"})
    assert status == 200
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": "{}"}


async def test_documents_that_ask_for_nothing_change_nothing(tiny_server: Any) -> None:
    _, plain = await chat(tiny_server, max_tokens=1)
    status, empty = await chat(tiny_server, max_tokens=1, documents=[])
    assert status == 200
    assert empty["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
