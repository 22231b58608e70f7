"""Several decode steps in one dispatch give what one at a time gives."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxserve.engine.core.protocol import Output
from jaxserve.engine.device.pending_step import PendingStep
from jaxserve.engine.frontend.llm import LLM
from jaxserve.outputs import CompletionOutput
from jaxserve.sampling.params import BeamSearchParams, SamplingParams, StructuredOutputsParams
from tests.engine_steps import check_one_request_fails_of_nan, drain, submit, tokens_of

pytestmark = pytest.mark.slow
STEPS = 4
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
STEADY: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 80},
    {"seed": 1, "max_tokens": 37, "top_p": 0.9, "logprobs": 2},
    {"temperature": 0, "max_tokens": 26, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"seed": 2, "max_tokens": 33, "repetition_penalty": 1.5, "n": 2},
    {"seed": 3, "max_tokens": 21, "allowed_token_ids": tuple(range(60, 90))},
    {"seed": 4, "max_tokens": 30, "logit_bias": {65: 5.0, 66: -5.0}},
    {"seed": 5, "max_tokens": 30, "min_tokens": 13, "stop_token_ids": tuple(range(0, 259, 3))},
]
OTHERS: list[dict[str, Any]] = [
    {"seed": 6, "max_tokens": 9, "structured_outputs": StructuredOutputsParams(regex="[a-c]{20}")},
    {"temperature": 0, "max_tokens": 9, "stop": ("a",)},
    {"seed": 7, "max_tokens": 9, "bad_words": ("AB",)},
    {"max_tokens": 6, "beam_search": BeamSearchParams(beam_width=2)},
    {"seed": 8, "max_tokens": 14, "stop_token_ids": tuple(range(0, 259, 9))},
]


@pytest.fixture(scope="module")
def several(tiny_llama: Path, llm: LLM, llm_settings: dict[str, Any]) -> Iterator[LLM]:
    """The engine of `llm` with several steps a dispatch, and so few blocks that it preempts."""
    blocks = 12 * (2**20 // llm.core.ready.num_blocks)
    settings = llm_settings | {"kv_cache_memory": blocks, "decode_steps": STEPS}
    several = LLM(str(tiny_llama), progress=False, **settings)
    yield several
    assert several.core.compiles == 0
    several.core.close()


def most_tokens(outputs: list[Output]) -> int:
    """Tokens of the longest output."""
    return max((len(output.token_ids) for output in outputs), default=0)


def assert_alike(one: CompletionOutput, other: CompletionOutput) -> None:
    """Except for the last bits of logprobs, which depend on the step's size in so small a model."""
    assert (one.token_ids, one.text) == (other.token_ids, other.text)
    assert (one.finish_reason, one.stop_reason) == (other.finish_reason, other.stop_reason)
    ours, theirs = one.logprobs or (), other.logprobs or ()
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.token_id, a.rank) == (b.token_id, b.rank)
        assert a.logprob == pytest.approx(b.logprob, abs=1e-4)


@pytest.mark.parametrize("overlap", [True, False])
def test_tokens_are_those_of_single_steps(
    several: LLM,
    llm: LLM,
    prompts: list[list[int]],
    overlap: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each alone, all that can be steady together, with some that can't, and after preemptions."""
    dispatch, dispatched = several.core._runner.dispatch_several, 0

    def counted(step: PendingStep) -> None:
        nonlocal dispatched
        dispatched += 1
        dispatch(step)

    monkeypatch.setattr(several.core._runner, "dispatch_several", counted)
    monkeypatch.setattr(several.core, "_overlap", overlap)
    steady = [SamplingParams(**{"ignore_eos": True} | kind) for kind in STEADY]
    mixed = [*steady, *(SamplingParams(**kind) for kind in OTHERS)]
    several.generate(
        prompts[0], SamplingParams(**OTHERS[0])
    )  # so that no request waits for its grammar below
    before = several.core.stats.preemptions
    for kinds in (*([kind] for kind in steady), steady, mixed):
        dispatched = 0
        inputs = [prompts[i % 2] for i in range(len(kinds))]
        ours, theirs = several.generate(inputs, kinds), llm.generate(inputs, kinds)
        for one, other in zip(ours, theirs, strict=True):
            for a, b in zip(one.outputs, other.outputs, strict=True):
                assert_alike(a, b)
        assert dispatched > 1
    assert several.core.stats.preemptions > before
    assert several.core.stats.blocks_used == 0


@pytest.mark.parametrize("overlap", [True, False])
def test_arrivals_and_an_abort_in_between(
    several: LLM,
    llm: LLM,
    prompts: list[list[int]],
    overlap: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(several.core, "_overlap", overlap)
    expected = list(llm.generate(prompts[1], GREEDY)[0].outputs[0].token_ids)
    submit(several, "first", prompts[1], GREEDY)
    submit(several, "leaves", prompts[1], GREEDY)
    turns: list[list[Output]] = []
    while most_tokens(turns[-1] if turns else []) < STEPS:
        turns.append(several.core.step())
    submit(several, "second", prompts[1], GREEDY)
    several.core.abort("leaves")  # while its steps are pending, if they overlap
    while not tokens_of(turns[-1], "second"):
        turns.append(several.core.step())
    while several.core.has_work:
        turns.append(several.core.step())
    outputs = [output for turn in turns for output in turn]
    assert tokens_of(outputs, "first") == tokens_of(outputs, "second") == expected
    left = tokens_of(outputs, "leaves")
    assert left == expected[: len(left)]
    assert len(left) == 1 + STEPS
    assert most_tokens(turns[-1]) >= STEPS or most_tokens(turns[-2]) >= STEPS
    assert several.core.stats.blocks_used == 0


def test_logits_of_nan_in_a_later_step_fail_that_request_alone(
    several: LLM, prompts: list[list[int]], tiny_llama_golden: dict[str, Any]
) -> None:
    good, bad = (list(several.generate(p, GREEDY)[0].outputs[0].token_ids) for p in prompts[1:])
    check_one_request_fails_of_nan(several, tiny_llama_golden, GREEDY, prompts[1:], [good, bad])


def test_a_dispatch_that_fails_ends_its_requests_alone(
    several: LLM, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = several.generate(prompts[1], GREEDY)[0].outputs[0].token_ids
    dispatch, turns = several.core._runner.dispatch_several, itertools.count()

    def second_fails(step: PendingStep) -> None:
        if next(turns) == 1:
            raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")
        dispatch(step)

    monkeypatch.setattr(several.core._runner, "dispatch_several", second_fails)
    for name in ("a", "b"):
        submit(several, name, prompts[1], GREEDY)
    outputs = drain(several)
    assert sorted(o.request_id for o in outputs if o.error) == ["a", "b"]
    assert several.core.stats.blocks_used == 0
    assert several.generate(prompts[1], GREEDY)[0].outputs[0].token_ids == expected
    assert next(turns) > 3
