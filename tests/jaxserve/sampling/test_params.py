"""SamplingParams: ranges, and messages that name the field."""

from __future__ import annotations

import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams


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
    ],
)
def test_out_of_range_names_the_field(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_one_stop_string_and_all_of_top_k_are_spelled_as_vllm_does() -> None:
    params = SamplingParams(stop="end", top_k=-1)
    assert params.stop == ("end",)
    assert params.top_k == 0


def test_stop_ids_outside_the_vocabulary_are_refused() -> None:
    params = SamplingParams(stop_token_ids=(5, 100))
    params.check_vocabulary(101)
    with pytest.raises(InvalidRequestError, match="stop_token_ids"):
        params.check_vocabulary(100)
