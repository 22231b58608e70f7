"""Structured output of a model with random weights, which draws any token that the mask allows."""

from __future__ import annotations

import json

import jsonschema
import pytest

from jaxserve.engine.frontend.llm import LLM
from jaxserve.outputs import CompletionOutput
from jaxserve.sampling.params import SamplingParams, StructuredOutputsParams
from tests.jaxserve.sampling.tool_schemas import schemas

# Random weights rarely end a string, and like blanks.
BIAS = {'"': 4.0, "}": 2.0, "]": 3.0, "@": 2.0} | dict.fromkeys(" \n\t\r", -6.0)
LONGEST = 500


def outputs(llm: LLM, lengths: dict[int, int], seed: int) -> dict[int, CompletionOutput]:
    """Outputs by schema, each of so many tokens at most."""
    several, bias = schemas(), {llm.tokenizer.encode(text)[-1]: b for text, b in BIAS.items()}
    params = [
        SamplingParams(
            structured_outputs=StructuredOutputsParams(json=several[i]),
            seed=seed + i,
            max_tokens=length,
            logit_bias=bias,
        )
        for i, length in lengths.items()
    ]
    done = llm.generate([[65 + i % 26] for i in lengths], params)
    return {i: d.outputs[0] for i, d in zip(lengths, done, strict=True)}


@pytest.mark.slow
def test_outputs_for_200_tool_schemas_parse_and_validate_or_are_cut(roomy: LLM) -> None:
    several = schemas()
    assert len(several) == 200
    whole = outputs(roomy, dict.fromkeys(range(200), LONGEST), seed=0)
    for i, output in whole.items():
        if output.finish_reason == "stop":
            jsonschema.validate(json.loads(output.text), several[i])
    endless = [i for i, output in whole.items() if output.finish_reason == "length"]
    assert len(endless) <= 3  # a string that found no end; such a schema gets another seed
    for i, output in outputs(roomy, dict.fromkeys(endless, LONGEST), seed=1000).items():
        jsonschema.validate(json.loads(output.text), several[i])

    lengths = {i: 1 + i % (len(output.token_ids) - 1) for i, output in whole.items()}
    for i, cut in outputs(roomy, lengths, seed=0).items():
        assert cut.finish_reason == "length"
        assert cut.token_ids == whole[i].token_ids[: lengths[i]]
