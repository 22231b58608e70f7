"""/v1/responses by the `openai` package, streamed and not, each pair equal; and its input items."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, cast

import openai
import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.outputs import CompletionDelta, TokenLogprobs
from jaxserve.server.api.responses.builder import ResponseBuilder
from jaxserve.server.api.shared.logprobs_writer import ChoiceLogprobs, TokenNames
from jaxserve.server.parsers import TOOL_PARSERS, ThinkTagParser
from jaxserve.server.parsers.answer_parser import AnswerFormat
from jaxserve.server.wire.responses.items import to_messages
from jaxserve.server.wire.responses.response import (
    FunctionCallItem,
    InputTokensDetails,
    MessageItem,
    OutputTokensDetails,
    Response,
    ResponseUsage,
)

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture(scope="module")
def client(tiny_server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def without_ids(response: Any) -> dict[str, Any]:
    """A response without its ids and times, which differ for the same request."""
    body = response.model_dump()
    for name in ("id", "created_at", "completed_at"):
        body.pop(name)
    for item in body["output"]:
        item.pop("id")
        item.pop("call_id", None)
    body["usage"]["input_tokens_details"].pop("cached_tokens")
    return json.loads(json.dumps(body, default=str))


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    """A response, asked for whole, streamed, and through the package's accumulator; all agree."""
    asked: dict[str, Any] = {"model": "tiny", "input": "hi", "temperature": 0} | fields
    whole = client.responses.create(**asked)
    events = list(client.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == f"response.{whole.status}"
    assert without_ids(events[-1].response) == without_ids(whole)  # type: ignore[union-attr]
    with client.responses.stream(**asked) as stream:
        for _ in stream:
            pass
        if whole.status == "completed":
            assert without_ids(stream.get_final_response())["output"] == [
                *map(plain, without_ids(whole)["output"])
            ]
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    return whole


def plain(item: dict[str, Any]) -> dict[str, Any]:
    """An item as the accumulator gives it, with what it has parsed."""
    if item["type"] == "function_call":
        return item | {"parsed_arguments": json.loads(item["arguments"])}
    content = [part | {"parsed": None} for part in item["content"]]
    return item | {"content": content}


@pytest.mark.slow
def test_a_text(client: openai.OpenAI) -> None:
    answer = ask(client, max_output_tokens=8, instructions="Be brief.", metadata={"a": "b"})
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage.output_tokens == 8
    assert (answer.store, answer.instructions) == (True, "Be brief.")
    assert answer.output[0].status == "incomplete"


@pytest.mark.slow
def test_logprobs(client: openai.OpenAI) -> None:
    answer = ask(
        client, max_output_tokens=3, top_logprobs=2, include=["message.output_text.logprobs"]
    )
    logprobs = answer.output[0].content[0].logprobs
    assert [len(entry.top_logprobs) for entry in logprobs] == [2, 2, 2]
    data = b"".join(bytes(entry.bytes) for entry in logprobs)
    assert data.decode(errors="replace") == answer.output_text


@pytest.mark.slow
def test_a_schema_and_tools(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "x", "schema": schema | {"additionalProperties": False}}
    form["schema"]["x-guidance"] = {"whitespace_flexible": False}
    answer = ask(client, text={"format": form})
    assert json.loads(answer.output_text) == {"a": 1}
    assert answer.status == "completed"
    named = {"type": "function", "name": "weather"}
    answer = ask(client, tools=[WEATHER], tool_choice=named)
    (call,) = answer.output
    assert (call.type, call.name, call.status) == ("function_call", "weather", "completed")
    assert json.loads(call.arguments)["city"] in ("Rome", "Paris")
    again = client.responses.create(
        model="tiny",
        max_output_tokens=1,
        tools=[WEATHER],
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            call.to_dict(),
            {"type": "function_call_output", "call_id": call.call_id, "output": "7"},
        ],
    )
    assert again.usage is not None
    assert again.usage.input_tokens > answer.usage.input_tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [{"strict": True}]}, "tools[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": []}, "input"),
        ({"input": [{"type": "image_generation_call"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"input": "x" * 2000}, "input"),
    ],
)
def test_refusals(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(**{"model": "tiny", "input": "hi"} | fields)
    assert raised.value.param == param


@pytest.mark.slow
def test_fields_and_tools_without_effect_are_ignored(client: openai.OpenAI) -> None:
    bare = {name: value for name, value in WEATHER.items() if name != "type"}
    space = {"type": "namespace", "name": "n", "tools": [{"type": "function", **bare}]}
    asked: Any = {"model": "tiny", "input": "hi", "max_output_tokens": 200, "temperature": 0}
    extra: Any = {"client_metadata": {"a": "b"}, "verbosity": "low"}
    answer = client.responses.create(
        **asked,
        tools=[{"type": "web_search"}, space],  # type: ignore[list-item]
        tool_choice="required",
        include=["reasoning.encrypted_content"],
        store=True,
        truncation="auto",
        service_tier="flex",
        text={"verbosity": "low", "format": {"type": "json_object"}},
        reasoning={"summary": "auto"},
        extra_body=extra,
    )
    assert answer.output[0].type == "function_call"  # the call comes before the format
    assert answer.output[0].name == WEATHER["name"]


def test_items_become_messages() -> None:
    items = [
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "function_call", "call_id": "c3", "name": "h", "arguments": ""},
    ]

    def call(name: str, call_id: str, **arguments: Any) -> dict[str, Any]:
        function = {"name": name, "arguments": arguments}
        return {"id": call_id, "type": "function", "function": function}

    assert to_messages(items, "i") == [
        {"role": "system", "content": "i"},
        {"role": "system", "content": "d"},
        {"role": "user", "content": "u"},
        {
            "role": "assistant",
            "reasoning": "hm",
            "reasoning_content": "hm",
            "content": "a",
            "tool_calls": [call("f", "c1"), call("g", "c2", x=1)],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "assistant", "content": "", "tool_calls": [call("h", "c3")]},
    ]
    with pytest.raises(InvalidRequestError) as raised:
        to_messages([items[0], {"type": "function_call", "call_id": "c"}], None)
    assert raised.value.param == "input[1].name"


def built(texts: list[str]) -> tuple[Response, list[dict[str, Any]]]:
    """A response built from consecutive texts, and its events."""
    blank = Response(
        id="resp_1",
        created_at=0,
        model="m",
        **dict.fromkeys(("instructions", "max_output_tokens", "user", "safety_identifier")),
        **dict.fromkeys(("prompt_cache_key", "tool_choice")),
        temperature=1.0,
        top_p=1.0,
        top_logprobs=0,
        text={},
        reasoning={},
        tools=[],
        parallel_tool_calls=True,
        metadata={},
    )
    parser = AnswerFormat(
        lambda: ThinkTagParser(""), lambda: TOOL_PARSERS["hermes"](["f"])
    ).new_parser()
    logprobs = ChoiceLogprobs(cast(TokenNames, _Letters()))
    builder = ResponseBuilder(blank, parser, logprobs, lambda: "call")
    events: list[bytes] = []
    for text in texts:
        events += builder.feed(CompletionDelta(0, text, logprobs=_logprobs(text)))
    end_of_turn = _logprobs("\x04")
    events += builder.feed(CompletionDelta(0, "", (), "stop", logprobs=end_of_turn))
    usage = ResponseUsage(1, InputTokensDetails(0), 1, OutputTokensDetails(0), 2)
    events += builder.end(usage)
    return builder.response, [json.loads(event.partition(b"data: ")[2]) for event in events]


class _Letters:
    """The names of tokens that are characters."""

    def names(self, token_ids: Iterable[int]) -> dict[int, str]:
        return {token: chr(token) for token in token_ids}

    def bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()

    def go_on(self, token_id: int) -> int:
        return 1


def _logprobs(text: str) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(ord(letter), -1.0, 1, ()) for letter in text)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<think>hm</think>Well, hm.", "Well, hm."),
        ("<think>th</think>\n\nth<t", "th<t"),
        ('a <tool_call>{"name": "f", "arguments": {"a":1}}</tool_call>', "a "),
        ("no tags: é and \U0001f600", "no tags: é and \U0001f600"),
    ],
)
def test_logprobs_are_of_the_text_alone(text: str, content: str, size: int) -> None:
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    response, events = built(pieces)
    (part,) = [item.content[0] for item in response.output if isinstance(item, MessageItem)]
    assert part.text.strip() == content.strip()
    assert "".join(entry.token for entry in part.logprobs) == part.text
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    for event in deltas:
        assert "".join(entry["token"] for entry in event["logprobs"]) == event["delta"]


def test_a_response_of_several_items() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    text = f"<think>hm</think>Well.{call}\n{call}"
    whole, _ = built([text])
    letters, events = built(list(text))

    def told(response: Response) -> list[tuple[str, str, str]]:
        return [
            ("function_call", item.status, item.arguments)
            if isinstance(item, FunctionCallItem)
            else (item.content[0].type, item.status, item.content[0].text)
            for item in response.output
        ]

    assert told(whole) == told(letters)
    assert told(whole) == [
        ("reasoning_text", "completed", "hm"),
        ("output_text", "completed", "Well."),
        ("function_call", "completed", '{"a": 1}'),
        ("function_call", "completed", '{"a": 1}'),
    ]
    for index, (_, _, text) in enumerate(told(whole)):
        own = [event for event in events if event.get("output_index") == index]
        assert own[0]["type"] == "response.output_item.added"
        assert own[-1]["type"] == "response.output_item.done"
        assert "".join(event["delta"] for event in own if "delta" in event) == text


def test_items_that_clients_send_back_in_other_forms() -> None:
    refused = [{"type": "refusal", "refusal": "no"}]
    items = [
        {"type": None, "role": "user", "content": "a"},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": refused},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": None},
        {"type": "function_call_output", "call_id": "c", "output": []},
    ]
    user, answer, result = to_messages(items, None)
    assert user == {"role": "user", "content": "a"}
    assert answer["content"] == "no"
    assert answer["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}
    assert result == {"role": "tool", "tool_call_id": "c", "content": ""}
