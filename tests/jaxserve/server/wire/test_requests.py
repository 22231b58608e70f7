"""Every field of the API is honoured, accepted as harmless, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher

from jaxserve.errors import InvalidRequestError
from jaxserve.outputs import CompletionDelta, TokenLogprobs
from jaxserve.sampling.params import BeamSearchParams, StructuredOutputsParams
from jaxserve.server.api.generation import best
from jaxserve.server.wire.chat_messages import template_message
from jaxserve.server.wire.requests import (
    CHAT_UNSUPPORTED,
    COMPLETION_UNSUPPORTED,
    ChatCompletionRequest,
    CompletionRequest,
)
from jaxserve.server.wire.validation import parse, renaming

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
    assert set(OPENAI_CHAT_FIELDS) <= chat
    text = set(CompletionRequest.__struct_fields__) | set(COMPLETION_UNSUPPORTED)
    assert set(OPENAI_COMPLETION_FIELDS) <= text


def test_a_field_is_honoured_or_refused_never_both() -> None:
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
def test_values_that_ask_for_nothing_are_accepted(field: str, value: Any) -> None:
    parse_chat(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("store", True),
        ("audio", {"voice": "x"}),
        ("functions", [{"name": "f"}]),
        ("verbosity", "low"),
        ("echo", True),
        ("frobnicate", 1),
    ],
)
def test_values_that_ask_for_more_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=field) as raised:
        parse_chat(**{field: value})
    assert raised.value.param == field


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
        ({"logit_bias": {"5": "high"}}, "logit_bias[...]"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"stream": True, "stream_options": {"include": True}}, "stream_options.include"),
    ],
)
def test_wrong_types_name_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse_chat(**fields)
    assert raised.value.param == param


@pytest.mark.parametrize("field", ["model", "messages"])
def test_a_missing_field_is_named(field: str) -> None:
    body = {name: value for name, value in CHAT.items() if name != field}
    with pytest.raises(InvalidRequestError, match=f"you must provide {field}") as raised:
        parse(body, ChatCompletionRequest, CHAT_UNSUPPORTED)
    assert raised.value.param == field


def test_max_completion_tokens_wins() -> None:
    assert parse_chat(max_tokens=5, max_completion_tokens=7).to_sampling_params().max_tokens == 7
    assert parse_chat(max_tokens=5).to_sampling_params().max_tokens == 5
    assert parse_chat().to_sampling_params().max_tokens is None
    assert parse_text().to_sampling_params().max_tokens == 16
    assert parse_text(max_tokens=3).to_sampling_params().max_tokens == 3


def test_a_bad_limit_is_named_as_the_client_spelled_it() -> None:
    for fields, param in (
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 4, "temperature": 9}, "temperature"),
    ):
        body = parse_chat(**fields)
        with pytest.raises(InvalidRequestError) as raised, renaming(body.names):
            body.to_sampling_params()
        assert raised.value.param == param
        assert str(raised.value).startswith(f"{param} must be")


def test_sampling_fields_reach_the_sampler() -> None:
    params = parse_chat(
        temperature=0,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        seed=11,
        stop="x",
        stop_token_ids=[4],
        ignore_eos=True,
        skip_special_tokens=False,
    ).to_sampling_params()
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0, 0.5, 3, 0.1)
    assert (params.seed, params.stop, params.stop_token_ids) == (11, ("x",), (4,))
    assert params.ignore_eos
    assert not params.skip_special_tokens


def test_every_sampling_parameter_has_its_field() -> None:
    fields = {
        "n": 3,
        "typical_p": 0.9,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.2,
        "min_tokens": 2,
        "bad_words": ["x"],
        "allowed_token_ids": [1, 2],
        "include_stop_str_in_output": True,
        "truncate_prompt_tokens": 9,
    }
    params = parse_chat(**fields, logit_bias={"5": -3}).to_sampling_params()
    for name, value in fields.items():
        assert getattr(params, name) == (tuple(value) if isinstance(value, list) else value)
    assert params.logit_bias == {5: -3}


def test_logprobs_are_spelled_in_two_ways() -> None:
    assert parse_chat().to_sampling_params().logprobs is None
    assert parse_chat(logprobs=True).to_sampling_params().logprobs == 0
    assert parse_chat(logprobs=True, top_logprobs=5).to_sampling_params().logprobs == 5
    assert parse_text(logprobs=3).to_sampling_params().logprobs == 3
    for fields in ({"top_logprobs": 5}, {"logprobs": True, "top_logprobs": 21}):
        with pytest.raises(InvalidRequestError, match="top_logprobs") as raised:
            parse_chat(**fields).to_sampling_params()
        assert raised.value.param == "top_logprobs"


def test_best_of_makes_more_than_it_returns() -> None:
    body = parse_text(n=2, best_of=5)
    params = body.to_sampling_params()
    assert (params.n, params.logprobs, body.returned) == (5, 0, 2)
    for fields in ({"n": 3, "best_of": 2}, {"best_of": 2, "stream": True}, {"best_of": 1000}):
        with pytest.raises(InvalidRequestError) as raised:
            parse_text(**fields).to_sampling_params()
        assert raised.value.param == "best_of"


def test_a_beam_search_is_as_wide_as_best_of_or_n() -> None:
    asked: dict[str, Any] = {"use_beam_search": True, "n": 2, "length_penalty": 0.5}
    model_defaults = {"top_p": 0.9, "repetition_penalty": 1.1}
    params = parse_chat(**asked).to_sampling_params(model_defaults)
    assert params.beam_search == BeamSearchParams(2, 0.5)
    params = parse_text(**asked, best_of=4, early_stopping="never").to_sampling_params()
    assert (params.n, params.beam_search) == (2, BeamSearchParams(4, 0.5, "never"))
    for fields, param in (
        ({"use_beam_search": True, "n": 17}, "n"),
        ({"use_beam_search": True, "best_of": 17}, "best_of"),
        ({"use_beam_search": True, "top_p": 0.5}, "top_p"),
        ({"use_beam_search": True, "early_stopping": "soon"}, "early_stopping"),
        ({"length_penalty": 0.5}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
    ):
        with pytest.raises(InvalidRequestError) as raised:
            parse_text(**fields).to_sampling_params()
        assert raised.value.param == param


def test_the_best_are_the_likeliest_by_token() -> None:
    def output(index: int, *logprobs: float) -> CompletionDelta:
        entries = tuple(TokenLogprobs(0, value, 1, ()) for value in logprobs)
        return CompletionDelta(index, "", (0,) * len(entries), "stop", None, entries)

    made = [output(0, -3.0), output(1, -1.0, -1.0), output(2, -2.0), output(3, -0.5)]
    kept = best(made, 2, 1)
    assert [o.index for o in kept] == [0, 1]
    assert [len(o.token_ids) for o in kept] == [2, 1]
    assert kept[1].logprobs == made[3].logprobs


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            {"json": SCHEMA},
        ),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ("a", "b")}),
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
    ],
)
def test_structured_outputs_have_several_spellings(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    params = parse_chat(**fields).to_sampling_params()
    assert params.structured_outputs == StructuredOutputsParams(**expected)


def test_only_one_spelling_at_a_time() -> None:
    body = parse_chat(response_format={"type": "json_object"}, guided_regex="a")
    with pytest.raises(InvalidRequestError, match="send one"):
        body.to_sampling_params()
    with pytest.raises(InvalidRequestError, match=r"response_format\.json_schema"):
        parse_chat(response_format={"type": "json_schema"}).to_sampling_params()


def test_stream_options_need_stream() -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse_chat(stream_options={"include_usage": True}).check()
    assert raised.value.param == "stream_options"
    streamed = parse_chat(stream=True, stream_options={"include_usage": True})
    streamed.check()
    assert streamed.include_usage
    with pytest.raises(InvalidRequestError) as raised:
        parse_chat(stream=True, stream_options={"include_obfuscation": True}).check()
    assert raised.value.param == "stream_options.include_obfuscation"
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


def test_messages_become_the_templates() -> None:
    text = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template_message({"role": "user", "content": text}, "messages[0]") == {
        "role": "user",
        "content": "a\nb",
    }
    assert template_message({"role": "developer", "content": "x", "name": "n"}, "") == {
        "role": "system",
        "content": "x",
        "name": "n",
    }


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
BAD_FUNCTION = {"name": "f", "arguments": "[1]"}


def test_calls_and_their_results_become_the_templates() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"}
    assert template_message(call, "") == {
        "role": "assistant",
        "content": "",
        "reasoning": "hm",
        "reasoning_content": "hm",
        "tool_calls": [CALL | {"function": {"name": "f", "arguments": {"a": 1}}}],
    }
    result = {"role": "tool", "content": "4", "tool_call_id": "c1"}
    assert template_message(result, "") == result


def test_an_answer_can_be_sent_back_as_a_message() -> None:
    from openai.types.chat import ChatCompletionMessage

    answer = ChatCompletionMessage(role="assistant", content="Paris.").model_dump()
    assert template_message(answer, "messages[1]") == {"role": "assistant", "content": "Paris."}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": "x", "tool_call_id": "1"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": "x", "reasoning": "y"}, "messages[0].reasoning"),
        ({"role": "user"}, "messages[0].content"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": "x", "colour": 1}, "messages[0].colour"),
        (
            {"role": "assistant", "content": "", "tool_calls": [{}]},
            "messages[0].tool_calls[0].id",
        ),
        (
            {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f"}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"role": "assistant", "tool_calls": [CALL | {"function": BAD_FUNCTION}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "messages[0].tool_calls"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[0].content[0]",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"text": "a"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": ["a"]}, "messages[0].content[0]"),
    ],
)
def test_bad_messages_are_refused_by_place(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        template_message(message, "messages[0]")
    assert raised.value.param == param


F = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
G = {"type": "function", "function": {"name": "g", "description": "d", "strict": True}}


def test_tool_choices() -> None:
    def mode(**fields: Any) -> tuple[str, str | None]:
        use = parse_chat(**fields).tool_use()
        return use.mode, use.named

    assert mode() == mode(tools=[]) == mode(tools=[F], tool_choice="none") == ("none", None)
    assert mode(tools=[F, G]) == mode(tools=[F], tool_choice="auto") == ("auto", None)
    assert mode(tools=[F, G], tool_choice="required") == ("required", None)
    named = {"type": "function", "function": {"name": "g"}}
    assert mode(tools=[F, G], tool_choice=named) == ("required", "g")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [F], "tool_choice": {"type": "function", "function": {"name": "h"}}},
            "tool_choice",
        ),
        ({"tools": [F, F]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [F], "tool_choice": "required", "guided_regex": "a"}, "tool_choice"),
    ],
)
def test_tools_that_contradict_themselves(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse_chat(**fields).to_sampling_params()
    assert raised.value.param == param


def test_forced_calls_shape_the_output() -> None:
    def structured(**fields: Any) -> StructuredOutputsParams | None:
        return parse_chat(tools=[F, G], **fields).to_sampling_params().structured_outputs

    assert structured() is None
    named = {"type": "function", "function": {"name": "f"}}
    arguments = structured(tool_choice=named)
    assert arguments is not None
    assert json.loads(str(arguments.json))["type"] == "object"
    required = structured(tool_choice="required")
    assert required is not None
    assert required.grammar is not None
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(required.grammar)) == ""


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


def test_an_echo_asks_for_the_prompts_logprobs() -> None:
    params = parse_text(echo=True, logprobs=2, max_tokens=0).to_sampling_params()
    assert (params.max_tokens, params.logprobs, params.prompt_logprobs) == (1, 2, 2)
    with pytest.raises(InvalidRequestError):
        parse_text(max_tokens=0).to_sampling_params()


@pytest.mark.parametrize("parse_any", [parse_chat, parse_text])
def test_the_models_defaults_hold_where_the_request_says_nothing(parse_any: Any) -> None:
    defaults = {"temperature": 0.6, "top_p": 0.9, "top_k": 20}
    params = parse_any(top_p=1.0).to_sampling_params(defaults)
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 1.0, 20)
    params = parse_any(temperature=0, top_k=0).to_sampling_params(defaults)
    assert (params.temperature, params.top_p, params.top_k) == (0, 0.9, 0)
    assert parse_any().to_sampling_params().temperature == 1.0
