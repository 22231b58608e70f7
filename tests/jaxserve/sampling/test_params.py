"""SamplingParams: ranges, and messages that name the field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import BeamSearchParams, SamplingParams, StructuredOutputsParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 1.5),
        ("top_k", -2),
        ("seed", 2**64),
        ("max_tokens", 0),
        ("stop", ("",)),
        ("stop", ("x",) * 17),
        ("n", 0),
        ("n", 1.0),
        ("n", 129),
        ("typical_p", 0.0),
        ("typical_p", 1.01),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-38),
        ("repetition_penalty", float("inf")),
        ("min_tokens", -1),
        ("min_tokens", 17),  # above max_tokens
        ("bad_words", ("",)),
        ("bad_words", ("word",) * 301),
        ("bad_words", ("w" * 257,)),
        ("allowed_token_ids", ()),
        ("logit_bias", {5: 101.0}),
        ("logit_bias", {"five": 1.0}),
        ("logit_bias", {5.5: 1.0}),
        ("logit_bias", dict.fromkeys(range(301), 1.0)),
        ("logprobs", 21),
        ("logprobs", -1),
        ("prompt_logprobs", 21),
        ("truncate_prompt_tokens", 0),
    ],
)
def test_out_of_range_names_the_field(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 17}, "beam_width"),
        ({"beam_width": 2, "length_penalty": float("nan")}, "length_penalty"),
        ({"beam_width": 2, "early_stopping": 1}, "early_stopping"),
    ],
)
def test_a_beam_search_out_of_range_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError, match=param) as caught:
        BeamSearchParams(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "other", [{"n": 3}, {"top_p": 0.5}, {"stop": "x"}, {"logit_bias": {1: 2.0}}, {"min_tokens": 1}]
)
def test_fields_that_a_beam_search_can_not_apply_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(beam_search=BeamSearchParams(2), **other)
    assert caught.value.param == next(iter(other))


def test_one_stop_string_and_all_of_top_k_are_spelled_as_vllm_does() -> None:
    params = SamplingParams(stop="end", top_k=-1, bad_words="no", stop_token_ids=None)
    assert (params.stop, params.bad_words, params.stop_token_ids) == (("end",), ("no",), ())
    assert params.top_k == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop_token_ids", (5, 100)),
        ("allowed_token_ids", (100,)),
        ("logit_bias", {"100": 1.0}),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(field: str, value: object) -> None:
    params = SamplingParams(**{field: value})
    params.check_vocabulary(101)
    with pytest.raises(InvalidRequestError, match=field):
        params.check_vocabulary(100)


def test_ids_that_are_not_whole_numbers_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"allowed_token_ids.*5\.5"):
        SamplingParams(allowed_token_ids=(5.5,)).check_vocabulary(100)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [{}, {"json": "{}", "regex": "a"}, {"json": "{"}, {"choice": ()}, {"choice": ("a", "")}],
)
def test_a_structured_output_has_exactly_one_constraint(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        StructuredOutputsParams(**fields)
    assert caught.value.param == "structured_outputs"


def test_params_cross_the_process_boundary_whole() -> None:
    bias = SamplingParams(
        n=2,
        logit_bias={"7": 1.5},
        allowed_token_ids=[1, 2],
        structured_outputs=StructuredOutputsParams(json={"type": "object"}),
    )
    beams = SamplingParams(beam_search=BeamSearchParams(3, 0.5, "never"))
    for params in (bias, beams):
        packed = msgspec.msgpack.encode(params)
        assert msgspec.msgpack.decode(packed, type=SamplingParams) == params
    assert bias.logit_bias == {7: 1.5}
