"""Every field of the API is applied, accepted because it changes nothing, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.server.wire.chat.request import CHAT_UNSUPPORTED, ChatCompletionRequest
from jaxserve.server.wire.completions.request import COMPLETION_UNSUPPORTED, CompletionRequest
from jaxserve.server.wire.ignored_fields import WITHOUT_EFFECT, collect_ignored
from jaxserve.server.wire.validation import parse

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


def parse_chat(**fields: Any) -> ChatCompletionRequest:
    return parse(CHAT | fields, ChatCompletionRequest, CHAT_UNSUPPORTED)


def parse_text(**fields: Any) -> CompletionRequest:
    return parse(TEXT | fields, CompletionRequest, COMPLETION_UNSUPPORTED)


# Fields of the request types in openai-python 3.57.
OPENAI_CHAT_FIELDS = [
    "audio",
    "frequency_penalty",
    "function_call",
    "functions",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "metadata",
    "modalities",
    "model",
    "moderation",
    "n",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning_effort",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "store",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "user",
    "verbosity",
    "web_search_options",
]
OPENAI_COMPLETION_FIELDS = [
    "best_of",
    "echo",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_tokens",
    "model",
    "n",
    "presence_penalty",
    "prompt",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "suffix",
    "temperature",
    "top_p",
    "user",
]


def test_every_openai_field_is_known() -> None:
    chat = set(ChatCompletionRequest.__struct_fields__) | set(CHAT_UNSUPPORTED)
    assert set(OPENAI_CHAT_FIELDS) <= chat | WITHOUT_EFFECT
    text = set(CompletionRequest.__struct_fields__) | set(COMPLETION_UNSUPPORTED)
    assert set(OPENAI_COMPLETION_FIELDS) <= text | WITHOUT_EFFECT


def test_no_field_is_both_applied_and_unsupported() -> None:
    assert not set(ChatCompletionRequest.__struct_fields__) & set(CHAT_UNSUPPORTED)
    assert not set(CompletionRequest.__struct_fields__) & set(COMPLETION_UNSUPPORTED)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 1),
        ("logprobs", False),
        ("logprobs", None),
        ("presence_penalty", 0),
        ("frequency_penalty", 0.0),
        ("tools", []),
        ("tools", None),
        ("tool_choice", "auto"),
        ("parallel_tool_calls", True),
        ("user", "u-1"),
        ("metadata", {"team": "a"}),
        ("store", False),
        ("response_format", {"type": "text"}),
        ("logit_bias", {}),
        ("service_tier", "auto"),
        ("echo", False),
        ("temperature", None),
        ("stop", None),
    ],
)
def test_values_that_change_nothing_are_accepted(field: str, value: Any) -> None:
    parse_chat(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("audio", {"voice": "x"}),
        ("functions", [{"name": "f"}]),
        ("echo", True),
        ("frobnicate", 1),
    ],
)
def test_unsupported_values_are_refused_by_name(field: str, value: Any) -> None:
    with (
        collect_ignored([], strict=True),
        pytest.raises(InvalidRequestError, match=field) as raised,
    ):
        parse_chat(**{field: value})
    assert raised.value.param == field
    named: list[str] = []
    with collect_ignored(named):
        if field in CHAT_UNSUPPORTED:
            with pytest.raises(InvalidRequestError, match=field):
                parse_chat(**{field: value})
        else:
            parse_chat(**{field: value})
            assert named == [field]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 3}, "model"),
        ({"temperature": "hot"}, "temperature"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"stop": [1]}, "stop[0]"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stream": 1}, "stream"),
        ({"n": True}, "n"),
        ({"logit_bias": {"5": "high"}}, "logit_bias.5"),
        ({"metadata": {"a": "b", "c": 1}}, "metadata.c"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"stream": True, "stream_options": {"include": True}}, "stream_options.include"),
    ],
)
def test_wrong_types_name_the_field(fields: dict[str, Any], param: str) -> None:
    with collect_ignored([], strict=True), pytest.raises(InvalidRequestError) as raised:
        parse_chat(**fields)
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("store", True),
        ("verbosity", "low"),
        ("service_tier", "flex"),
        ("prompt_cache_retention", "24h"),
        ("truncation", "auto"),
        ("client_metadata", {"a": 1}),
    ],
)
def test_fields_without_effect_are_named(field: str, value: Any) -> None:
    ignored: list[str] = []
    with collect_ignored(ignored):
        assert parse_chat(**{field: value}) == parse_chat()
        parse_chat(**{field: None})
    assert ignored == [field]


def test_unknown_fields_of_tools_are_named() -> None:
    function = {"name": "f", "description": None, "defer": 1}
    ignored: list[str] = []
    with collect_ignored(ignored):
        tools = parse_chat(tools=[{"type": "function", "function": function, "cache": {}}]).tools
    assert tools is not None
    assert tools[0].function.name == "f"
    assert sorted(ignored) == ["tools[0].cache", "tools[0].function.defer"]


@pytest.mark.parametrize("field", ["messages"])
def test_a_missing_field_is_named(field: str) -> None:
    body = {name: value for name, value in CHAT.items() if name != field}
    with pytest.raises(InvalidRequestError, match=f"you must provide {field}") as raised:
        parse(body, ChatCompletionRequest, CHAT_UNSUPPORTED)
    assert raised.value.param == field


def test_stream_options_need_stream() -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse_chat(stream_options={"include_usage": True}).check()
    assert raised.value.param == "stream_options"
    streamed = parse_chat(stream=True, stream_options={"include_usage": True})
    streamed.check()
    assert streamed.include_usage
    named: list[str] = []
    with collect_ignored(named):  # it would only pad events
        parse_chat(stream=True, stream_options={"include_obfuscation": True}).check()
    assert named == ["stream_options.include_obfuscation"]
    alone = {"continuous_usage_stats": True}
    with pytest.raises(InvalidRequestError) as raised:
        parse_chat(stream=True, stream_options=alone).check()
    assert raised.value.param == "stream_options.continuous_usage_stats"
    parse_chat(stream=True, stream_options=alone | {"include_usage": True}).check()


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("hi", ["hi"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_prompt_forms(prompt: Any, prompts: list[Any]) -> None:
    assert parse_text(prompt=prompt).prompts() == prompts


@pytest.mark.parametrize("prompt", [[], ["a", 1], [1, [2]], [["a"]], [True], {"text": "a"}, None])
def test_other_prompt_forms_are_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse_text(prompt=prompt).prompts()
    assert raised.value.param is not None
    assert raised.value.param.startswith("prompt")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"priority": 2**40}, "priority"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
)
def test_vllms_extras_out_of_range(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse_chat(**fields).check()
    assert raised.value.param == param
