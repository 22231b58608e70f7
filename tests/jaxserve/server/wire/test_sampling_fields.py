"""From a request's fields to sampling parameters."""

from __future__ import annotations

from typing import Any

import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import BeamSearchParams, StructuredOutputsParams
from jaxserve.server.wire.chat.request import CHAT_UNSUPPORTED, ChatCompletionRequest
from jaxserve.server.wire.completions.request import COMPLETION_UNSUPPORTED, CompletionRequest
from jaxserve.server.wire.validation import parse, renaming

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


def parse_chat(**fields: Any) -> ChatCompletionRequest:
    return parse(CHAT | fields, ChatCompletionRequest, CHAT_UNSUPPORTED)


def parse_text(**fields: Any) -> CompletionRequest:
    return parse(TEXT | fields, CompletionRequest, COMPLETION_UNSUPPORTED)


def test_max_completion_tokens_takes_precedence() -> None:
    assert parse_chat(max_tokens=5, max_completion_tokens=7).to_sampling_params().max_tokens == 7
    assert parse_chat(max_tokens=5).to_sampling_params().max_tokens == 5
    assert parse_chat().to_sampling_params().max_tokens is None
    assert parse_text().to_sampling_params().max_tokens is None  # 16, or what the context leaves
    assert parse_text(max_tokens=3).to_sampling_params().max_tokens == 3


def test_errors_name_the_limit_that_the_request_uses() -> None:
    for fields, param in (
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 4, "temperature": 9}, "temperature"),
    ):
        body = parse_chat(**fields)
        with pytest.raises(InvalidRequestError) as raised, renaming(body.api_names):
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


def test_logprobs_in_both_apis() -> None:
    assert parse_chat().to_sampling_params().logprobs is None
    assert parse_chat(logprobs=True).to_sampling_params().logprobs == 0
    assert parse_chat(logprobs=True, top_logprobs=5).to_sampling_params().logprobs == 5
    assert parse_text(logprobs=3).to_sampling_params().logprobs == 3
    for fields in ({"top_logprobs": 5}, {"logprobs": True, "top_logprobs": 21}):
        with pytest.raises(InvalidRequestError, match="top_logprobs") as raised:
            parse_chat(**fields).to_sampling_params()
        assert raised.value.param == "top_logprobs"


def test_best_of_generates_more_than_it_returns() -> None:
    body = parse_text(n=2, best_of=5)
    params = body.to_sampling_params()
    assert (params.n, params.logprobs, body.returned_choices) == (5, 0, 2)
    for fields in ({"n": 3, "best_of": 2}, {"best_of": 2, "stream": True}, {"best_of": 1000}):
        with pytest.raises(InvalidRequestError) as raised:
            parse_text(**fields).to_sampling_params()
        assert raised.value.param == "best_of"


def test_the_width_of_a_beam_search_is_best_of_or_n() -> None:
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
        ({"use_beam_search": True, "temperature": 0.7}, "temperature"),
        ({"use_beam_search": True, "early_stopping": "soon"}, "early_stopping"),
        ({"length_penalty": 0.5}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
    ):
        with pytest.raises(InvalidRequestError) as raised:
            parse_text(**fields).to_sampling_params()
        assert raised.value.param == param


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
def test_alternative_fields_of_structured_outputs(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    params = parse_chat(**fields).to_sampling_params()
    assert params.structured_outputs == StructuredOutputsParams(**expected)


def test_alternative_fields_exclude_one_another() -> None:
    body = parse_chat(response_format={"type": "json_object"}, guided_regex="a")
    with pytest.raises(InvalidRequestError, match="send one"):
        body.to_sampling_params()
    with pytest.raises(InvalidRequestError, match=r"response_format\.json_schema"):
        parse_chat(response_format={"type": "json_schema"}).to_sampling_params()


def test_echo_with_logprobs_needs_prompt_logprobs() -> None:
    params = parse_text(echo=True, logprobs=2, max_tokens=0).to_sampling_params()
    assert (params.max_tokens, params.logprobs, params.prompt_logprobs) == (1, 2, 2)
    with pytest.raises(InvalidRequestError):
        parse_text(max_tokens=0).to_sampling_params()


@pytest.mark.parametrize("parse_any", [parse_chat, parse_text])
def test_the_models_defaults_apply_to_absent_fields(parse_any: Any) -> None:
    defaults = {"temperature": 0.6, "top_p": 0.9, "top_k": 20}
    params = parse_any(top_p=1.0).to_sampling_params(defaults)
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 1.0, 20)
    params = parse_any(temperature=0, top_k=0).to_sampling_params(defaults)
    assert (params.temperature, params.top_p, params.top_k) == (0, 0.9, 0)
    assert parse_any().to_sampling_params().temperature == 1.0
