"""What counts as a tool call in an answer, and what stays content."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from tokenizers import pre_tokenizers

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


SCHEMA = {"const": {"name": "f", "arguments": {}}}
FORM = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
OPEN, TAG = map(ALPHABET.index, "{<")  # tokens that begin an object and a call


@pytest.mark.parametrize("form", [{"response_format": FORM}, {"guided_json": SCHEMA}])
async def test_an_answer_by_a_schema_is_no_call(tiny_server: Any, form: Any) -> None:
    status, answer = await chat(tiny_server, tools=[TOOL], logit_bias={OPEN: 100}, **form)
    assert status == 200
    message = answer["choices"][0]["message"]
    assert json.loads(message["content"]) == {"name": "f", "arguments": {}}
    assert not message.get("tool_calls")
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("form", [FORM, {"type": "json_object"}])
async def test_a_call_is_possible_where_an_answer_has_a_schema(tiny_server: Any, form: Any) -> None:
    asked = {"tools": [TOOL], "parallel_tool_calls": False, "response_format": form}
    status, answer = await chat(tiny_server, logit_bias={TAG: 100}, **asked)
    assert status == 200
    (choice,) = answer["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": "{}"}
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None


async def test_calls_in_a_response_beside_a_schema(tiny_server: Any) -> None:
    """Whole and streamed, in OpenAI's newer API."""
    body = {
        "input": "x",
        "tools": [{"type": "function", "name": "f"}],
        "parallel_tool_calls": False,
        "text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}}},
        "max_output_tokens": 100,
    }
    async with (
        aiohttp.ClientSession(tiny_server.url, timeout=LIMIT) as http,
        http.post("/v1/responses", json=body) as response,
    ):
        answer = await response.json()
    assert answer["status"] in ("completed", "incomplete")
    for item in answer["output"]:
        if item["type"] == "function_call":
            assert (item["name"], item["arguments"]) == ("f", "{}")
        else:
            text = item["content"][0]["text"]
            assert answer["status"] == "incomplete" or isinstance(json.loads(text), dict)


@pytest.mark.parametrize("arguments", ["null", '""', "{}"])
async def test_a_call_without_arguments_can_be_sent_back(tiny_server: Any, arguments: str) -> None:
    text = CALL.replace("{}", arguments)
    _, first = await chat(tiny_server, tools=[TOOL], guided_choice=[text])
    message = first["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": "{}"}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "y"}
    history = [{"role": "user", "content": "x"}, message, result]
    status, _ = await chat(tiny_server, tools=[TOOL], messages=history, max_tokens=1)
    assert status == 200


@pytest.mark.parametrize("end", ["", "</tool_call>"])
async def test_a_call_that_is_cut_off_is_content(tiny_server: Any, end: str) -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": "b' + end
    _, answer = await chat(tiny_server, tools=[TOOL], guided_choice=[text])
    message = answer["choices"][0]["message"]
    assert (message["content"], message.get("tool_calls")) == (text, None)


HALVES = (
    r"{\"t\":\"\ud83d\"}",
    r"{\"\udc00\":[\"\ud83d\"]}",
    r"\ud83d\udc00",
    "{",
    "null",
    "[]",
    "12",
    "",
)


@pytest.mark.parametrize("arguments", HALVES)
async def test_arguments_of_a_history_are_any_text(tiny_server: Any, arguments: str) -> None:
    """Also as items of the newer API; halves of surrogate pairs among them, whole or escaped."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "ARGUMENTS"}}
    history = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "y"},
    ]
    items = [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "ARGUMENTS"},
        {"type": "function_call_output", "call_id": "c", "output": "y"},
    ]
    quoted = json.dumps(arguments)
    for path, fields in (
        ("/v1/chat/completions", {"messages": history, "max_tokens": 1}),
        ("/v1/responses", {"input": items, "max_output_tokens": 1}),
    ):
        async with (
            aiohttp.ClientSession(tiny_server.url, timeout=LIMIT) as http,
            http.post(
                path,
                data=json.dumps(fields).replace('"ARGUMENTS"', quoted),
                headers={"Content-Type": "application/json"},
            ) as response,
        ):
            assert response.status == 200, await response.text()


@pytest.mark.parametrize(
    "half",
    [r'"\ud83d"', r'"\uD83Dx"', r'"\udc00"', r'"\ud83d\n"', r'"\\\ud83d"', r'"\ud83d\ude00\ude00"'],
)
@pytest.mark.parametrize(
    "body",
    [
        '{"messages": [{"role": "user", "content": HALF}], "max_tokens": 1}',
        '{"messages": [{"role": "user", "content": "x"}], "stop": [HALF]}',
        '{"messages": [{"role": "user", "content": "x"}], "metadata": {"a": HALF}}',
        '{"messages": [{"role": "user", "content": "x"}], HALF: 1}',
    ],
)
async def test_half_a_surrogate_in_a_body_is_named(tiny_server: Any, body: str, half: str) -> None:
    data = body.replace("HALF", half)
    place = data.rindex(
        r"\u", 0, data.index(half) + len(half)
    )  # each has one half, its last escape
    json_type = {"Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession(tiny_server.url, timeout=LIMIT) as http,
        http.post("/v1/chat/completions", data=data, headers=json_type) as response,
    ):
        answer = await response.json()
        assert response.status == 400
        assert answer["error"]["message"].endswith(f"half of a surrogate pair at byte {place}")


@pytest.mark.parametrize(
    "text", [r'"\ud83d"', r'{"const": "\ud83d"}', r'{"description": "\ud83d"}']
)
async def test_half_a_surrogate_in_a_schema_is_no_failure(tiny_server: Any, text: str) -> None:
    status, _ = await chat(tiny_server, guided_json=text, max_tokens=1)
    assert status in (200, 400)


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


SPACE = {ALPHABET.index("Ċ"): 100}  # a line feed, in the tokens' own letters


async def test_formats_that_nobody_knows_are_annotations(tiny_server: Any) -> None:
    schema = {"enum": ["x"], "type": "string", "format": "password"}
    status, answer = await chat(tiny_server, guided_json=schema)
    assert status == 200
    assert json.loads(answer["choices"][0]["message"]["content"]) == "x"


@pytest.mark.parametrize("api", ["guided_json", "structured_outputs", "response_format"])
async def test_white_space_in_json_ends(tiny_server: Any, api: str) -> None:
    schema = {"enum": [[1]]}
    fields: dict[str, Any] = {
        "guided_json": schema,
        "structured_outputs": {"json": schema},
        "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
    }
    _, answer = await chat(
        tiny_server, logit_bias=SPACE, temperature=0, max_tokens=50, **{api: fields[api]}
    )
    (choice,) = answer["choices"]
    assert json.loads(choice["message"]["content"]) == [1]
    assert choice["finish_reason"] == "stop"


async def test_numbers_in_json_end(tiny_server: Any) -> None:
    nines = {ALPHABET.index("9"): 100}
    _, answer = await chat(
        tiny_server, guided_json={"type": "number"}, logit_bias=nines, temperature=0
    )
    (choice,) = answer["choices"]
    assert 10**15 < json.loads(choice["message"]["content"]) < 1e308
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"grammar": 'root ::= "a" | "b"'}},
        {"guided_grammar": 'root ::= x\nx ::= "a" | "b" # letters'},
        {"guided_grammar": 'start: "a" | "b"'},
    ],
)
async def test_both_notations_of_grammars(tiny_server: Any, fields: Any) -> None:
    status, answer = await chat(tiny_server, **fields)
    assert status == 200
    assert answer["choices"][0]["message"]["content"] in ("a", "b")


async def test_a_finished_grammar_ends_before_min_tokens(tiny_server: Any) -> None:
    status, answer = await chat(tiny_server, guided_choice=["ab"], min_tokens=20)
    assert status == 200
    (choice,) = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("ab", "stop")


async def test_a_forced_call_has_the_named_arguments_alone(tiny_server: Any) -> None:
    city = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": city}}
    named = {"type": "function", "function": {"name": "f"}}
    for choice in ("required", named):
        _, answer = await chat(
            tiny_server, tools=[tool], tool_choice=choice, parallel_tool_calls=False
        )
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert call["function"]["arguments"] == '{"city": "Rome"}'


async def test_an_answer_of_reasoning_alone_can_be_sent_back(tiny_server: Any) -> None:
    user = {"role": "user", "content": "x"}
    thought = {"role": "assistant", "content": None, "reasoning": "a"}
    status, _ = await chat(tiny_server, messages=[user, thought, user], max_tokens=1)
    assert status == 200


BAD = {"type": "string", "pattern": "(?=x)"}  # a regular expression that no grammar can follow
PARAMETERS = {"type": "object", "properties": {"city": BAD}}
BAD_TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
async def test_an_error_names_the_tool_and_the_field(tiny_server: Any, choice: Any) -> None:
    status, answer = await chat(tiny_server, tools=[TOOL, BAD_TOOL], tool_choice=choice)
    assert status == 400
    assert answer["error"]["param"] == "tools[1].function.parameters.properties.city"
    assert answer["error"]["message"].startswith("the tool weather: tools[1].function.parameters")
    assert "look-around" in answer["error"]["message"]


async def test_an_error_of_calls_or_an_answer_names_which(tiny_server: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    status, answer = await chat(tiny_server, tools=[TOOL, BAD_TOOL], response_format=form)
    assert (status, answer["error"]["param"]) == (
        400,
        "tools[1].function.parameters.properties.city",
    )
    form["json_schema"] = {"schema": {"properties": {"a": {"items": BAD}}}}
    status, answer = await chat(tiny_server, tools=[TOOL], response_format=form)
    assert (status, answer["error"]["param"]) == (
        400,
        "response_format.json_schema.schema.properties.a.items",
    )


async def test_an_error_names_the_field_of_a_tool_of_a_response(tiny_server: Any) -> None:
    inner = {"type": "function", **BAD_TOOL["function"]}  # type: ignore[dict-item]
    tools = [{"type": "web_search"}, {"type": "namespace", "name": "n", "tools": [inner]}]
    body = {"input": "x", "tools": tools, "tool_choice": "required"}
    form = {"type": "json_schema", "name": "s", "schema": {"properties": {"a": BAD}}}
    expected = {
        "tools[1].tools[0].parameters.properties.city": body,
        "text.format.schema.properties.a": {"input": "x", "text": {"format": form}},
    }
    for param, asked in expected.items():
        async with (
            aiohttp.ClientSession(tiny_server.url, timeout=LIMIT) as http,
            http.post("/v1/responses", json=asked) as response,
        ):
            assert response.status == 400
            assert (await response.json())["error"]["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "(?=x)"}, "guided_regex"),
        ({"guided_grammar": "start: nothing"}, "guided_grammar"),
        ({"guided_grammar": "root ::= nothing"}, "guided_grammar"),
        ({"guided_json": {"items": BAD}}, "guided_json.items"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {"json": {"items": BAD}}}, "structured_outputs.json.items"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ],
)
async def test_an_error_of_a_constraint_names_its_field(
    tiny_server: Any, fields: Any, param: str
) -> None:
    for path, own in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
    ):
        async with (
            aiohttp.ClientSession(tiny_server.url, timeout=LIMIT) as http,
            http.post(path, json={"max_tokens": 4, **own, **fields}) as response,
        ):
            error = (await response.json())["error"]
            assert (response.status, error["param"]) == (400, param), error


async def test_tools_of_a_model_whose_template_knows_none(server: Any) -> None:
    """They are explained in a message, and called and sent back as text."""
    asked = {"model": server.model, "messages": [{"role": "user", "content": "What time is it?"}]}
    _, plain = await chat(server, **asked, max_tokens=1)
    text = f"Let me see.\n{CALL}"
    status, first = await chat(server, **asked, tools=[TOOL], guided_choice=[text])
    assert status == 200, first
    told = first["usage"]["prompt_tokens"] - plain["usage"]["prompt_tokens"]
    assert told > 50
    message = first["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert (message["content"], call["function"]) == (
        "Let me see.",
        {"name": "f", "arguments": "{}"},
    )
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    result = {"role": "tool", "tool_call_id": call["id"], "content": "noon"}
    history = [*asked["messages"], message, result]
    status, after = await chat(server, **asked | {"messages": history}, tools=[TOOL], max_tokens=1)
    assert status == 200, after
    assert after["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"]


async def test_text_before_a_call_is_free(tiny_server: Any) -> None:
    """Under auto nothing is constrained before the marker that begins a call."""
    bias = {ALPHABET.index("<"): 100}
    status, answer = await chat(tiny_server, tools=[TOOL], logit_bias=bias, max_tokens=30)
    assert status == 200
    (choice,) = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("<" * 30, "length")


@pytest.mark.parametrize(("strict", "expected"), [(False, 200), (True, 400)])
async def test_a_schema_that_can_be_no_grammar(
    tiny_server: Any, strict: bool, expected: int
) -> None:
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {}, "uniqueItems": True}},
    }
    function = {"name": "f", "parameters": parameters, "strict": strict}
    status, answer = await chat(
        tiny_server, tools=[{"type": "function", "function": function}], max_tokens=2
    )
    assert status == expected, answer
