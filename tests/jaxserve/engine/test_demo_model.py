"""First light's acceptance on the demo model: transformers' tokens, alone and in company."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxserve.engine.llm import LLM
from jaxserve.sampling.params import SamplingParams

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[2] / "golden" / "smollm2_greedy.json"
NEAR_TIE = 1e-4  # top two logits closer than this may come out either way


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> Iterator[LLM]:
    llm = LLM(str(demo_model), progress=False, kv_cache_memory=2**28, forbid_compile=True)
    yield llm
    assert llm.core.compiles == 0
    llm.core.close()


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Any]]:
    return json.loads(GOLDEN.read_text())["runs"]


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
