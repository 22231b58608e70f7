"""Anthropic's /v1/messages against a real server of a tiny model.

The anthropic SDK itself is driven by clients/test_anthropic.py.
"""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from tokenizers import pre_tokenizers

LIMIT = aiohttp.ClientTimeout(total=120)  # only against hanging
HI = {"role": "user", "content": "hi"}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Paris"]}},
    "required": ["city"],
}
TOOL = {"name": "weather", "description": "The weather.", "input_schema": SCHEMA}
CLOCK = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


async def post(server: Any, path: str = "", **fields: Any) -> tuple[int, Any, Any]:
    """The status, the body and the headers of an answer."""
    body = {"model": "tiny", "messages": [HI], "max_tokens": 100, "temperature": 0} | fields
    if path:
        del body["max_tokens"], body["temperature"]
    async with (
        aiohttp.ClientSession(server.url, timeout=LIMIT) as http,
        http.post(f"/v1/messages{path}", json=body) as response,
    ):
        if response.content_type == "application/json":
            return response.status, await response.json(), response.headers
        return response.status, await response.text(), response.headers


def rebuilt(text: str) -> dict[str, Any]:
    """The message that a stream's events make, checked for the order that Anthropic documents."""
    message: dict[str, Any] = {}
    open_index, arguments = None, ""
    for event in text.strip().split("\n\n"):
        if event.startswith(":"):
            continue
        name, data = event.split("\n", 1)
        change = json.loads(data.removeprefix("data: "))
        assert name == f"event: {change['type']}"
        match change["type"]:
            case "message_start":
                assert not message
                message = change["message"]
                assert (message["content"], message["stop_reason"]) == ([], None)
            case "content_block_start":
                assert open_index is None
                open_index, arguments = change["index"], ""
                assert open_index == len(message["content"])
                message["content"].append(change["content_block"])
            case "content_block_delta":
                assert change["index"] == open_index
                block, delta = message["content"][-1], change["delta"]
                if delta["type"] == "input_json_delta":
                    arguments += delta["partial_json"]
                else:
                    key = delta["type"].removesuffix("_delta")
                    block[key] += delta[key]
            case "content_block_stop":
                if arguments:
                    message["content"][-1]["input"] = json.loads(arguments)
                open_index = None
            case "message_delta":
                message |= change["delta"]
                message["usage"] |= change["usage"]
            case "message_stop":
                message["ended"] = True
            case kind:
                raise AssertionError(kind)
    assert message.pop("ended")
    return message


async def both(server: Any, **fields: Any) -> dict[str, Any]:
    """A message, requested whole and streamed; both must be equal but for their ids."""
    first: dict[str, Any] | None = None
    for stream in (True, False):
        status, body, _ = await post(server, stream=stream, **fields)
        assert status == 200, body
        message = rebuilt(body) if stream else body
        assert message["id"].startswith("msg_")
        del message["id"]
        for block in message["content"]:
            if block["type"] == "tool_use":
                assert block.pop("id")
        usage = message["usage"]
        message["prompt"] = usage.pop("input_tokens") + usage.pop("cache_read_input_tokens")
        if first is None:
            first = message
        assert message == first
    assert first is not None
    return first


def forced(text: str) -> dict[str, Any]:
    """Fields that make the model say a text."""
    return {"structured_outputs": {"choice": [text]}}


async def test_a_text_and_its_usage(tiny_server: Any) -> None:
    message = await both(tiny_server, system="Be brief.", **forced("hello there"))
    assert message["content"] == [{"type": "text", "text": "hello there", "citations": None}]
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "tiny")
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert message["usage"]["output_tokens"] == len("hello there") + 1  # bytes, and the end
    _, counted, _ = await post(tiny_server, "/count_tokens", system="Be brief.")
    assert counted == {"input_tokens": message["prompt"]}


async def test_tokens_in_the_prefix_cache_are_counted_apart(tiny_server: Any) -> None:
    long = [{"role": "user", "content": "cached " * 20}]
    await post(tiny_server, messages=long, max_tokens=1)
    _, message, _ = await post(tiny_server, messages=long, max_tokens=1)
    usage = message["usage"]
    _, counted, _ = await post(tiny_server, "/count_tokens", messages=long)
    assert usage["cache_read_input_tokens"] > 100
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted["input_tokens"]
    assert usage["cache_creation_input_tokens"] == 0


async def test_what_ends_a_message(tiny_server: Any) -> None:
    stopped = await both(tiny_server, stop_sequences=["lo", "x"], **forced("hello there"))
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "lo")
    assert stopped["content"][0]["text"] == "hel"
    cut = await both(tiny_server, max_tokens=3, **forced("hello there"))
    assert (cut["stop_reason"], cut["content"][0]["text"]) == ("max_tokens", "hel")
    # More than the context holds, as Claude Code asks for, is as much as it leaves.
    prompt = [{"role": "user", "content": "x" * 1000}]
    _, full, _ = await post(tiny_server, messages=prompt, max_tokens=32_000, **forced("y" * 300))
    assert full["stop_reason"] == "model_context_window_exceeded"


CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'


async def test_a_tool_that_the_model_chooses_and_its_result(tiny_server: Any) -> None:
    tools = [TOOL, CLOCK]
    message = await both(tiny_server, tools=tools, **forced(f"Let me see.\n{CALL}"))
    text, call = message["content"]
    assert text["text"] == "Let me see."
    assert call == {"type": "tool_use", "name": "weather", "input": {"city": "Rome"}}
    assert message["stop_reason"] == "tool_use"
    history = [
        HI,
        {"role": "assistant", "content": [text, call | {"id": "toolu_1"}]},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [{"type": "text", "text": "warm"}],
                    "is_error": False,
                },
                {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    status, answer, _ = await post(tiny_server, tools=tools, messages=history, **forced("so"))
    assert status == 200, answer
    assert answer["content"][0]["text"] == "so"


@pytest.mark.parametrize(
    "choice", [{"type": "any"}, {"type": "tool", "name": "weather"}, {"type": "none"}]
)
async def test_a_choice_of_tools(tiny_server: Any, choice: dict[str, Any]) -> None:
    asked = choice | {"disable_parallel_tool_use": True}
    message = await both(tiny_server, tools=[TOOL], tool_choice=asked)
    calls = [block for block in message["content"] if block["type"] == "tool_use"]
    if choice["type"] == "none":
        assert calls == []
        return
    (call,) = calls
    assert call["input"]["city"] in ("Rome", "Paris")
    assert message["stop_reason"] == "tool_use"


async def test_thinking_is_a_block_if_it_is_asked_for(tiny_server: Any) -> None:
    said = forced("<think>why</think>so")
    asked = {"type": "enabled", "budget_tokens": 1024}
    message = await both(tiny_server, thinking=asked, **said)
    thought, text = message["content"]
    assert (thought["type"], thought["thinking"], text["text"]) == ("thinking", "why", "so")
    assert thought["signature"]
    without = await both(tiny_server, **said)
    assert [block["type"] for block in without["content"]] == ["text"]
    history = [HI, {"role": "assistant", "content": [thought, text]}, HI]
    status, answer, _ = await post(tiny_server, messages=history, max_tokens=1)
    assert status == 200, answer


async def test_an_answer_that_is_begun_goes_on(tiny_server: Any) -> None:
    counts = []
    for begun in ("W", "Well, "):
        messages = [HI, {"role": "assistant", "content": begun}]
        counts.append((await post(tiny_server, "/count_tokens", messages=messages))[1])
    # Nothing of the template is written after it.
    assert counts[1]["input_tokens"] - counts[0]["input_tokens"] == len("ell, ")
    status, message, _ = await post(tiny_server, messages=messages, **forced("yes"))
    assert (status, message["content"][0]["text"]) == (200, "yes")


async def test_an_answer_by_a_schema(tiny_server: Any) -> None:
    form = {"format": {"type": "json_schema", "schema": SCHEMA | {"additionalProperties": False}}}
    message = await both(
        tiny_server, output_config=form, structured_outputs=None, max_tokens=300, top_k=1
    )
    assert message["stop_reason"] == "end_turn"
    assert json.loads(message["content"][0]["text"])["city"] in ("Rome", "Paris")


@pytest.mark.parametrize(
    ("fields", "status", "kind", "said"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "x", "content": ""}]}, 400, "invalid_request_error", "role"),
        ({"model": "claude"}, 404, "not_found_error", "claude"),
        ({"mcp_servers": [{"url": "x"}]}, 400, "invalid_request_error", "mcp_servers"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            400,
            "invalid_request_error",
            "web_search_20250305",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            400,
            "invalid_request_error",
            "messages[0].content[0]",
        ),
        ({"stop_sequences": [""]}, 400, "invalid_request_error", "stop_sequences"),
        (
            {
                "tools": [{"name": "a", "input_schema": {"type": "strang"}}],
                "tool_choice": {"type": "any"},
            },
            400,
            "invalid_request_error",
            "the tool a: tools[0].input_schema",
        ),
        (
            {"structured_outputs": {"json": {"type": "strang"}}},
            400,
            "invalid_request_error",
            "structured_outputs.json: ",
        ),
        ({"messages": [HI | {"content": "x" * 3000}]}, 400, "invalid_request_error", "context"),
    ],
)
async def test_errors_have_anthropics_form(
    tiny_server: Any, fields: dict[str, Any], status: int, kind: str, said: str
) -> None:
    got, body, headers = await post(tiny_server, **fields)
    assert (got, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert said in body["error"]["message"]
    assert body["request_id"] == headers["request-id"] == headers["X-Request-Id"]


async def test_fields_that_we_dont_know_are_named(tiny_server: Any) -> None:
    status, _, headers = await post(
        tiny_server, max_tokens=1, context_management={"edits": []}, frob={"a": 1}, service_tier="x"
    )
    assert status == 200
    assert set(headers["X-Ignored-Fields"].split(", ")) == {
        "context_management",
        "frob",
        "service_tier",
    }
