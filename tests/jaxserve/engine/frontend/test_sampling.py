"""Every sampling setting, through the whole engine on a tiny random Llama."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxserve.engine.device.pending_step import PendingStep
from jaxserve.engine.frontend.llm import LLM
from jaxserve.errors import EngineError, InvalidRequestError, UnprocessableError
from jaxserve.outputs import CompletionOutput
from jaxserve.sampling.params import BeamSearchParams, SamplingParams, StructuredOutputsParams

BROKEN_TOKEN = 270  # one of the padding: no other prompt has it
VOCAB = 272  # of the model
IDS = 259  # ids that the tokenizer has


def run(llm: LLM, prompt: list[int], **settings: Any) -> CompletionOutput:
    settings = {"temperature": 0, "max_tokens": 12, "ignore_eos": True} | settings
    return llm.generate(prompt, SamplingParams(**settings))[0].outputs[0]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits[..., :IDS].astype(np.float64)
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_masks_and_bias_rule_tokens_in_and_out(llm: LLM, prompts: list[list[int]]) -> None:
    prompt = prompts[1]
    plain = run(llm, prompt).token_ids
    banned = llm.tokenizer.decode([plain[0]]) if plain[0] < 128 else None
    assert set(run(llm, prompt, allowed_token_ids=[65, 66]).token_ids) <= {65, 66}
    assert set(run(llm, prompt, logit_bias={70: 100}).token_ids) == {70}
    assert plain[0] not in run(llm, prompt, logit_bias={plain[0]: -100}).token_ids
    if banned:
        assert plain[0] not in run(llm, prompt, bad_words=[banned]).token_ids


def test_a_bad_word_of_several_tokens_never_appears(llm: LLM, prompts: list[list[int]]) -> None:
    a, b = llm.tokenizer.encode("AB", add_special_tokens=False)
    some = {"allowed_token_ids": [a, b], "max_tokens": 40, "temperature": 1.0, "seed": 3}
    assert (a, b) in pairwise(run(llm, prompts[1], **some).token_ids)
    bound = run(llm, prompts[1], bad_words=["AB"], **some).token_ids
    assert (a, b) not in pairwise(bound)
    with pytest.raises(UnprocessableError, match="rules out every token at output position"):
        run(llm, prompts[1], bad_words=["AB", "AA"], **some)


@pytest.mark.parametrize(
    "kind",
    [
        {"allowed_token_ids": [32], "bad_words": ["A"]},
        {"allowed_token_ids": [257], "min_tokens": 2},
        {"allowed_token_ids": [33], "structured_outputs": StructuredOutputsParams(regex="a+")},
    ],
)
def test_a_request_that_rules_out_every_token_is_refused_before_it_starts(
    llm: LLM, prompts: list[list[int]], kind: dict[str, Any]
) -> None:
    refused = llm.core.submit(llm._validator.submission("none", prompts[1], SamplingParams(**kind)))
    outputs = [refused] if refused else []
    while llm.core.has_work:
        outputs += llm.core.step()
    assert [o.error_kind for o in outputs] == ["UnprocessableError"]
    assert "rules out every token at output position 0" in (outputs[0].error or "")


def test_a_finished_grammar_ends_before_min_tokens(llm: LLM, prompts: list[list[int]]) -> None:
    some = {"structured_outputs": StructuredOutputsParams(regex="abc"), "min_tokens": 5}
    output = run(llm, prompts[1], **some)
    assert (output.text, output.finish_reason) == ("abc", "stop")


def test_a_space_can_be_a_bad_word(llm: LLM, prompts: list[list[int]]) -> None:
    (space,) = llm.tokenizer.encode(" ", add_special_tokens=False)
    some = {"allowed_token_ids": [space, 65], "logit_bias": {space: 100}}
    assert set(run(llm, prompts[1], **some).token_ids) == {space}
    assert set(run(llm, prompts[1], bad_words=[" "], **some).token_ids) == {65}


def test_min_tokens_keeps_the_end_away(llm: LLM, prompts: list[list[int]]) -> None:
    stop = {"logit_bias": {70: 50}, "stop_token_ids": [70]}
    assert run(llm, prompts[1], **stop).token_ids == (70,)
    late = run(llm, prompts[1], min_tokens=5, **stop)
    assert len(late.token_ids) == 6
    assert late.token_ids.index(70) == 5
    assert (late.finish_reason, late.stop_reason) == ("stop", 70)


@pytest.mark.parametrize(
    ("penalty", "first"), [({"frequency_penalty": 2.0}, 10), ({"repetition_penalty": 1e6}, 1)]
)
def test_penalties_end_repetition(
    llm: LLM, prompts: list[list[int]], penalty: dict[str, float], first: int
) -> None:
    biased = {"logit_bias": {65: 30.0}, "max_tokens": 40}
    assert set(run(llm, prompts[1], **biased).token_ids) == {65}
    tokens = run(llm, prompts[1], **biased, **penalty).token_ids
    assert tokens[:first] == (65,) * first
    assert len(set(tokens)) > 1


def test_logprobs_are_the_models(
    llm: LLM, prompts: list[list[int]], tiny_llama_golden: dict[str, Any]
) -> None:
    """A prompt of several chunks, also when it is in the prefix cache."""
    prompt = prompts[2]
    expected = log_softmax(tiny_llama_golden["logits_2"])
    llm.generate(prompt, SamplingParams(max_tokens=1))
    params = SamplingParams(max_tokens=3, logprobs=4, prompt_logprobs=2, seed=1)
    done = llm.generate(prompt, params)[0]
    assert done.prompt_logprobs is not None
    first, *others = done.prompt_logprobs
    assert first is None
    assert [entry.token_id for entry in others if entry] == prompt[1:]
    for position, entry in enumerate(others):
        assert entry is not None
        row = expected[position]
        assert entry.logprob == pytest.approx(row[entry.token_id], abs=2e-3)
        assert entry.rank == 1 + (row > row[entry.token_id]).sum()
        assert [i for i, _ in entry.top] == np.argsort(-row)[:2].tolist()
    drawn = done.outputs[0].logprobs
    assert drawn is not None
    assert tuple(entry.token_id for entry in drawn) == done.outputs[0].token_ids
    top_ids, top = zip(*drawn[0].top, strict=True)
    assert list(top_ids) == np.argsort(-expected[-1])[:4].tolist()
    np.testing.assert_allclose(top, np.sort(expected[-1])[::-1][:4], atol=2e-3)
    total = sum(entry.logprob for entry in drawn)
    assert done.outputs[0].cumulative_logprob == pytest.approx(total)


def test_logprobs_end_with_the_text(llm: LLM, prompts: list[list[int]]) -> None:
    whole = run(llm, prompts[0], logprobs=1)
    cut = run(llm, prompts[0], logprobs=1, stop=[whole.text[2:4]])
    assert cut.logprobs is not None
    assert len(cut.logprobs) == len(cut.token_ids) < 12


def test_stop_text_and_token_stay_if_asked_for(llm: LLM, prompts: list[list[int]]) -> None:
    whole = run(llm, prompts[0]).text
    kept = run(llm, prompts[0], stop=[whole[2:4]], include_stop_str_in_output=True)
    assert kept.text == whole[: whole.index(whole[2:4]) + 2]


def test_n_outputs_draw_with_seeds_of_their_own(llm: LLM, prompts: list[list[int]]) -> None:
    params = SamplingParams(n=4, seed=11, max_tokens=20, ignore_eos=True)
    outputs = llm.generate(prompts[2], params)[0].outputs
    assert [o.index for o in outputs] == [0, 1, 2, 3]
    alone = [
        llm.generate(prompts[2], SamplingParams(seed=11 + i, max_tokens=20, ignore_eos=True))[0]
        for i in range(4)
    ]
    assert [o.token_ids for o in outputs] == [a.outputs[0].token_ids for a in alone]
    assert len({o.token_ids for o in outputs}) == 4


def test_n_outputs_hold_the_prompts_blocks_once(llm: LLM) -> None:
    prompt = [5 + i % 200 for i in range(100)]  # 6 full blocks of 16, and one that is copied
    params = SamplingParams(n=8, seed=1, max_tokens=20, ignore_eos=True)
    submission = llm._validator.submission("blocks", prompt, params)
    llm.core.submit(submission)
    most = 0
    while llm.core.has_work:
        llm.core.step()
        most = max(most, llm.core.stats.blocks_used)
    assert 6 + 8 <= most <= 6 + 8 * 2  # 100 + 20 tokens: at most two blocks each of their own


def test_a_stop_string_ends_one_output_of_n(llm: LLM, prompts: list[list[int]]) -> None:
    params = {"n": 3, "seed": 5, "max_tokens": 20, "ignore_eos": True}
    free = llm.generate(prompts[2], SamplingParams(**params))[0].outputs
    stop = free[1].text[2:4]
    cut = llm.generate(prompts[2], SamplingParams(stop=(stop,), **params))[0].outputs
    for before, after in zip(free, cut, strict=True):
        assert after.text == before.text.split(stop)[0]
        assert after.finish_reason == ("stop" if stop in before.text else "length")


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ({"regex": r"[a-c]{3}-\d{2}"}, r"[a-c]{3}-\d{2}"),
        ({"choice": ("Paris", 'a "quoted" one')}, r'Paris|a "quoted" one'),
        ({"choice": tuple(f"{i}: [a-z]" for i in range(3000))}, r"[0-9]+: \[a-z\]"),
        ({"grammar": 'start: "x" NUM\nNUM: /[0-9]{4}/'}, r"x\d{4}"),
    ],
    ids=["regex", "choice", "choices", "grammar"],
)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_outputs_match_their_grammar(
    llm: LLM, prompts: list[list[int]], kind: dict[str, Any], pattern: str, temperature: float
) -> None:
    params = SamplingParams(
        structured_outputs=StructuredOutputsParams(**kind),
        temperature=temperature,
        max_tokens=40,
        n=3,
        seed=2,
    )
    for output in llm.generate(prompts[1], params)[0].outputs:
        assert re.fullmatch(pattern, output.text)
        assert output.finish_reason == "stop"


def test_a_structured_output_gets_a_token_in_every_step(llm: LLM, prompts: list[list[int]]) -> None:
    grammar = StructuredOutputsParams(regex="[a-z]{40}")
    plain = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    structured = SamplingParams(structured_outputs=grammar, seed=1, max_tokens=20)
    llm.core.submit(llm._validator.submission("plain", prompts[1], plain))
    llm.core.submit(llm._validator.submission("structured", prompts[1], structured))
    got = []
    while llm.core.has_work:
        got.append(sum(len(o.token_ids) for o in llm.core.step() if o.request_id == "structured"))
    first = got.index(1)
    assert got[first : first + 20] == [1] * 20


def test_a_mask_is_built_while_the_layers_of_its_step_are_computed(
    llm: LLM, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step's layers are dispatched before the last step's tokens are waited for, and its draw
    after that; a batch without grammars waits for nothing before its draw."""
    events: list[str] = []

    def recorded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def call_and_record(*args: Any) -> Any:
            events.append(name)
            return call(*args)

        return call_and_record

    grammar = StructuredOutputsParams(regex="[a-z]{40}")
    structured = SamplingParams(structured_outputs=grammar, seed=1, max_tokens=6)
    with monkeypatch.context() as patch:
        for name in ("dispatch", "draw"):
            patch.setattr(llm.core._runner, name, recorded(name, getattr(llm.core._runner, name)))
        patch.setattr(PendingStep, "wait", recorded("wait", PendingStep.wait))
        llm.generate(prompts[1], structured)
        assert events == ["dispatch", "draw", *["dispatch", "wait", "draw"] * 5, "wait"]
        events.clear()
        llm.generate(prompts[1], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
        assert events == ["dispatch", "draw", *["dispatch", "draw", "wait"] * 2, "wait"]


def test_json_follows_its_schema_or_is_cut(llm: LLM, prompts: list[list[int]]) -> None:
    schema = {
        "type": "object",
        "properties": {"size": {"enum": ["S", "M"]}, "count": {"type": "integer", "maximum": 99}},
        "required": ["size", "count"],
        "additionalProperties": False,
    }
    structured = StructuredOutputsParams(json=schema)
    several = [
        SamplingParams(structured_outputs=structured, seed=i, max_tokens=90) for i in range(6)
    ] + [SamplingParams(structured_outputs=structured, max_tokens=4, temperature=0)]
    *whole, cut = llm.generate([prompts[1]] * 7, several)
    for done in whole:
        if done.outputs[0].finish_reason == "stop":
            value = json.loads(done.outputs[0].text)
            assert value["size"] in ("S", "M")
            assert value["count"] <= 99
    assert any(done.outputs[0].finish_reason == "stop" for done in whole)
    assert cut.outputs[0].finish_reason == "length"
    assert cut.outputs[0].text.startswith("{")


@pytest.mark.parametrize(
    "kind",
    [
        {"regex": "((("},
        {"regex": r"[^\s\S]"},  # it compiles, and matches nothing
        {"grammar": "start: nowhere"},
        {"json": '{"type": "nothing"}'},
        {"json": '{"$ref": "#"}'},
    ],
)
def test_a_grammar_that_does_not_compile_is_refused(llm: LLM, kind: dict[str, Any]) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**kind))
    with pytest.raises(InvalidRequestError, match="grammar") as caught:
        llm.generate([65], params)
    assert not llm.core.has_work
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_of_nan_fail_that_request_alone(
    llm: LLM, prompts: list[list[int]], temperature: float
) -> None:
    expected = run(llm, prompts[1])
    params = llm.core._runner._params.outer
    for i, leaf in enumerate(params):
        if leaf.shape[0] == VOCAB:
            params[i] = leaf.at[BROKEN_TOKEN].set(np.nan)
    good = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    bad = SamplingParams(temperature=temperature, max_tokens=12)
    llm.core.submit(llm._validator.submission("bad", [65, 66, BROKEN_TOKEN], bad))
    llm.core.submit(llm._validator.submission("good", prompts[1], good))
    outputs = []
    while llm.core.has_work:
        outputs += llm.core.step()
    failed = [o for o in outputs if o.request_id == "bad" and o.error]
    assert [o.error_kind for o in failed] == ["EngineError"]
    tokens = [t for o in outputs if o.request_id == "good" for t in o.token_ids]
    assert tuple(tokens) == expected.token_ids
    with pytest.raises(EngineError, match="finite"):
        llm.generate([65, 66, BROKEN_TOKEN], good)


def test_a_long_prompt_is_cut_from_the_left(llm: LLM, prompts: list[list[int]]) -> None:
    prompt = prompts[2]
    done = llm.generate(prompt, SamplingParams(truncate_prompt_tokens=5, max_tokens=1))[0]
    assert list(done.prompt_token_ids) == prompt[-5:]
    done = llm.generate([65] * 500, SamplingParams(truncate_prompt_tokens=-1, max_tokens=1))[0]
    assert len(done.prompt_token_ids) == llm.core.ready.max_model_len - 1


KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.3, "top_p": 0.9},
    {"top_k": 7, "logprobs": 3},
    {"min_p": 0.05},
    {"typical_p": 0.7},
    {"repetition_penalty": 1.5},
    {"temperature": 0, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"logit_bias": {65: 5.0, 66: -5.0}},
    {"allowed_token_ids": tuple(range(60, 90))},
    {"bad_words": ("A", "BC")},
    {"min_tokens": 6, "ignore_eos": False, "stop_token_ids": tuple(range(0, 259, 3))},
    {"structured_outputs": StructuredOutputsParams(regex=r"[a-z ]{6,30}")},
    {"n": 2},
    {"n": 2, "beam_search": BeamSearchParams(3), "seed": None},  # which draws nothing
    {"prompt_logprobs": 1},
]


def check_each_kind_equals_its_solo_run(loaded: LLM, llm: LLM, prompts: list[list[int]]) -> None:
    """One batch of 64 rows, all kinds mixed."""
    params = [
        SamplingParams(**{"seed": i, "max_tokens": 24, "ignore_eos": True} | KINDS[i % len(KINDS)])
        for i in range(64)
    ]
    several = [prompts[i % 3] for i in range(64)]
    jax.clear_caches()  # an engine's programs are its own
    together = loaded.generate(several, params)
    assert loaded.core.compiles == 0
    for prompt, p, done in zip(several, params, together, strict=True):
        alone = llm.generate(prompt, p)[0]
        for one, other in zip(done.outputs, alone.outputs, strict=True):
            assert one.token_ids == other.token_ids, p
            assert one.finish_reason == other.finish_reason


@pytest.mark.slow
def test_each_parameter_under_load_equals_its_solo_run(
    roomy: LLM, llm: LLM, prompts: list[list[int]]
) -> None:
    before = roomy.core.stats.preemptions
    check_each_kind_equals_its_solo_run(roomy, llm, prompts)
    assert roomy.core.stats.preemptions == before


@pytest.mark.slow
def test_each_parameter_preempted_on_its_way_equals_its_solo_run(
    tiny_llama: Path, llm: LLM, prompts: list[list[int]]
) -> None:
    crowded = LLM(
        str(tiny_llama),
        progress=False,
        max_num_seqs=64,
        max_num_batched_tokens=96,
        kv_cache_memory=64 * (2**20 // llm.core.ready.num_blocks),
        forbid_compile=True,
    )
    check_each_kind_equals_its_solo_run(crowded, llm, prompts)
    assert crowded.core.stats.preemptions > 0
    crowded.core.close()
