"""Beam search on the tiny Llama: transformers' outputs and scores, shared blocks, all freed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxserve.engine.frontend.llm import LLM
from jaxserve.outputs import RequestOutput
from jaxserve.sampling.params import BeamSearchParams, SamplingParams

GOLDEN = Path(__file__).parents[3] / "golden" / "beams.json"


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Any]]:
    return json.loads(GOLDEN.read_text())["tiny"]


def params_of(run: dict[str, Any], **settings: Any) -> SamplingParams:
    search = BeamSearchParams(run["num_beams"], run["length_penalty"], run["early_stopping"])
    return SamplingParams(
        n=run["num_beams"],
        max_tokens=run["max_new_tokens"],
        stop_token_ids=run["stops"],
        ignore_eos=True,
        beam_search=search,
        **settings,
    )


def check(run: dict[str, Any], done: RequestOutput) -> None:
    assert [list(output.token_ids) for output in done.outputs] == run["outputs"]
    for output in done.outputs:
        stopped = output.token_ids[-1] in run["stops"]
        assert output.finish_reason == ("stop" if stopped else "length")
        assert output.stop_reason == (output.token_ids[-1] if stopped else None)


def test_alone_a_search_gives_transformers_outputs_and_scores(
    llm: LLM, runs: list[dict[str, Any]]
) -> None:
    for run in runs[::5]:
        done = llm.generate(run["prompt"], params_of(run, logprobs=2))[0]
        check(run, done)
        scores = [
            output.cumulative_logprob / len(output.token_ids) ** run["length_penalty"]
            for output in done.outputs
        ]
        np.testing.assert_allclose(scores, run["scores"], rtol=1e-4)
        for output in done.outputs:
            for entry in output.logprobs:
                assert len(entry.top) == 2
                if entry.rank <= 2:
                    assert entry.top[entry.rank - 1] == (entry.token_id, entry.logprob)


def test_in_a_batch_with_too_few_slots(llm: LLM, runs: list[dict[str, Any]]) -> None:
    """All at once, with plain requests: 8 slots for over 100 beams."""
    plain = SamplingParams(seed=1, max_tokens=30, ignore_eos=True)
    prompt = runs[0]["prompt"]
    alone = llm.generate(prompt, plain)[0]
    several = [run["prompt"] for run in runs] + [prompt] * 4
    *searches, a, b, c, d = llm.generate(several, [*map(params_of, runs), *[plain] * 4])
    for run, done in zip(runs, searches, strict=True):
        check(run, done)
    assert all(o.outputs[0].token_ids == alone.outputs[0].token_ids for o in (a, b, c, d))
    assert llm.core.stats.blocks_used == 0


@pytest.mark.slow
def test_with_too_few_blocks_searches_preempt_each_other(
    tiny_llama: Path, llm: LLM, llm_settings: dict[str, Any], runs: list[dict[str, Any]]
) -> None:
    bytes_a_block = 2**20 // llm.core.ready.num_blocks
    few = {**llm_settings, "kv_cache_memory": 12 * bytes_a_block}  # a search and a bit
    small = LLM(str(tiny_llama), progress=False, **few)
    chosen = [runs[i] for i in (9, 27, 28)]
    prompts = [run["prompt"] for run in chosen]
    for run, done in zip(
        chosen, small.generate(prompts, list(map(params_of, chosen))), strict=True
    ):
        check(run, done)
    assert small.core.stats.preemptions > 0
    assert small.core.stats.blocks_used == 0
    small.core.close()


def test_beams_hold_the_blocks_of_what_they_share_once(
    llm: LLM, runs: list[dict[str, Any]]
) -> None:
    prompt = [5 + i % 200 for i in range(96)]  # 6 full blocks
    params = SamplingParams(max_tokens=20, ignore_eos=True, beam_search=BeamSearchParams(6))
    llm.core.submit(llm._validator.submission("beams", prompt, params))
    most = 0
    while llm.core.has_work:
        llm.core.step()
        most = max(most, llm.core.stats.blocks_used)
    assert 6 + 6 <= most <= 6 + 6 * 2  # 20 more tokens: at most two blocks each of their own
    assert llm.core.stats.blocks_used == 0


def test_an_abort_frees_everything_at_any_time(llm: LLM, runs: list[dict[str, Any]]) -> None:
    run = runs[9]
    for steps in (1, 2, 3, 8, 9):
        llm.core.submit(llm._validator.submission("gone", run["prompt"], params_of(run)))
        for _ in range(steps):
            assert not any(output.token_ids for output in llm.core.step())
        llm.core.abort("gone")
        while llm.core.has_work:
            assert not any(output.token_ids for output in llm.core.step())
        assert llm.core.stats.blocks_used == 0
    check(run, llm.generate(run["prompt"], params_of(run))[0])


def test_a_prompt_s_logprobs_come_with_the_best_output(
    llm: LLM, runs: list[dict[str, Any]]
) -> None:
    run = runs[0]
    done = llm.generate(run["prompt"], params_of(run, prompt_logprobs=1))[0]
    known = llm.generate(run["prompt"], SamplingParams(max_tokens=1, prompt_logprobs=1))[0]
    assert done.prompt_logprobs == known.prompt_logprobs


def test_one_token_or_one_beam(llm: LLM, prompts: list[list[int]]) -> None:
    beams = BeamSearchParams(3)
    first = SamplingParams(n=3, max_tokens=1, ignore_eos=True, beam_search=beams)
    top = llm.generate(prompts[1], SamplingParams(max_tokens=1, logprobs=3))[0].outputs[0]
    assert top.logprobs is not None
    outputs = llm.generate(prompts[1], first)[0].outputs
    assert [o.token_ids[0] for o in outputs] == [i for i, _ in top.logprobs[0].top]
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    single = SamplingParams(max_tokens=12, ignore_eos=True, beam_search=BeamSearchParams(1))
    a, b = llm.generate([prompts[1]] * 2, [greedy, single])
    assert a.outputs == b.outputs
