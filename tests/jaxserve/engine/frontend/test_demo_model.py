"""The demo model against transformers: greedy tokens, alone and in a batch; logprobs; beams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxserve.engine.frontend.llm import LLM
from jaxserve.outputs import PositionLogprobs
from jaxserve.sampling.params import BeamSearchParams, SamplingParams

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[3] / "golden"
NEAR_TIE = 1e-4  # top two logits closer than this may come out either way


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    llm = LLM(str(demo_model), progress=False, kv_cache_memory=2**28, forbid_compile=True)
    yield llm
    assert llm.core.compiles == 0
    llm.core.close()


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Any]]:
    return json.loads((GOLDEN / "smollm2_greedy.json").read_text())["runs"]


def greedy(llm: LLM, prompts: list[list[int]], lengths: list[int]) -> list[tuple[int, ...]]:
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]
    return [done.outputs[0].token_ids for done in llm.generate(prompts, params)]


def test_24_prompts_of_64_greedy_tokens_equal_transformers(
    llm: LLM, runs: list[dict[str, Any]]
) -> None:
    outputs = greedy(llm, [run["prompt"] for run in runs], [64] * len(runs))
    assert len(outputs) == 24
    for run, output in zip(runs, outputs, strict=True):
        assert list(output) == run["tokens"]


def test_16_requests_at_once_give_what_each_gives_alone(
    llm: LLM, runs: list[dict[str, Any]]
) -> None:
    chosen = runs[:16]
    prompts, lengths = [run["prompt"] for run in chosen], [8 + 3 * i for i in range(16)]
    together = greedy(llm, prompts, lengths)
    alone = [greedy(llm, [p], [n])[0] for p, n in zip(prompts, lengths, strict=True)]
    for run, a, b in zip(chosen, together, alone, strict=True):
        if a != b:
            split = next(i for i, pair in enumerate(zip(a, b, strict=True)) if len(set(pair)) > 1)
            assert run["top2_gap"][split] < NEAR_TIE


def test_logprobs_of_prompts_and_outputs_equal_transformers(llm: LLM) -> None:
    runs = json.loads((GOLDEN / "smollm2_logprobs.json").read_text())["runs"]
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=5, prompt_logprobs=5)
    for run, done in zip(runs, llm.generate([run["prompt"] for run in runs], params), strict=True):
        output = done.outputs[0]
        assert list(output.token_ids) == run["tokens"]
        assert done.prompt_logprobs is not None
        assert output.logprobs is not None
        entries = [*done.prompt_logprobs[1:], *output.logprobs]
        assert [e.token_id for e in entries] == [*run["prompt"][1:], *run["tokens"]]
        np.testing.assert_allclose([e.logprob for e in entries], run["chosen"], atol=2e-3)
        for entry, rank, ids, values in zip(
            entries, run["rank"], run["top_ids"], run["top"], strict=True
        ):
            check_top(entry, rank, ids, values)


def check_top(entry: PositionLogprobs, rank: int, ids: list[int], values: list[float]) -> None:
    """Equal except for the order of near ties, which may replace the last entry."""
    assert abs(entry.rank - rank) <= rank // 100  # of 49,152 tokens, those far down are close
    np.testing.assert_allclose([value for _, value in entry.top], values, atol=2e-3)
    far = [i for i, value in zip(ids, values, strict=True) if value > values[-1] + NEAR_TIE]
    assert set(far) <= {i for i, _ in entry.top}


def test_a_beam_search_equals_transformers(llm: LLM) -> None:
    run = json.loads((GOLDEN / "beams.json").read_text())["demo"]
    params = SamplingParams(
        n=run["num_beams"],
        max_tokens=run["max_new_tokens"],
        logprobs=0,
        beam_search=BeamSearchParams(run["num_beams"]),
    )
    outputs = llm.generate(run["prompt"], params)[0].outputs
    assert [list(o.token_ids) for o in outputs] == run["outputs"]
    scores = [o.cumulative_logprob / len(o.token_ids) for o in outputs]
    np.testing.assert_allclose(scores, run["scores"], atol=1e-3)


def test_8_outputs_of_a_1000_token_prompt_take_its_blocks_once(
    llm: LLM, runs: list[dict[str, Any]]
) -> None:
    prompt = ([token for run in runs for token in run["prompt"]] * 2)[:1000]
    params = SamplingParams(n=8, seed=1, max_tokens=12, ignore_eos=True)
    llm.core.submit(llm._validator.submission("blocks", prompt, params))
    used = []
    while llm.core.has_work:
        llm.core.step()
        used.append(llm.core.stats.blocks_used)
    # 62 full blocks, and each output's own copy of the partial one; then its next.
    assert 62 + 8 in used
    assert max(used) == 62 + 2 * 8
