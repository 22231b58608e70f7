"""A step that verifies guesses may fail, or find logits that aren't finite."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from jaxserve.engine.device.pending_step import PendingStep
from jaxserve.engine.frontend.llm import LLM
from jaxserve.sampling.params import SamplingParams
from scheduler import Sequence
from tests.engine_steps import check_one_request_fails_of_nan, drain, submit

pytestmark = pytest.mark.slow
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


class Known:
    """Guesses the true outputs, by prompt."""

    def __init__(self, outputs: dict[tuple[int, ...], list[int]]) -> None:
        self._outputs = outputs

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        known = len(sequence.output_token_ids)
        return self._outputs[tuple(sequence.request.prompt_token_ids)][known : known + most]

    def forget_ended(self) -> None:
        pass


def test_logits_of_nan_after_a_guess_fail_that_request_alone(
    engine: LLM,
    prompts: list[list[int]],
    tiny_llama_golden: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good, bad = (list(engine.generate(p, GREEDY)[0].outputs[0].token_ids) for p in prompts[1:])
    truth = {tuple(prompts[1]): good, tuple(prompts[2]): bad}
    monkeypatch.setattr(engine.core._speculation, "_proposer", Known(truth))
    check_one_request_fails_of_nan(engine, tiny_llama_golden, GREEDY, prompts[1:], [good, bad])


def test_a_step_that_fails_ends_its_requests_alone(
    engine: LLM, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list(engine.generate(prompts[1], GREEDY)[0].outputs[0].token_ids)
    known = Known({tuple(prompts[1]): expected})
    monkeypatch.setattr(engine.core._speculation, "_proposer", known)
    draw, verified = engine.core._runner.draw, itertools.count()

    def second_fails(step: PendingStep) -> None:
        if step.verify is not None and next(verified) == 1:
            raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")
        draw(step)

    monkeypatch.setattr(engine.core._runner, "draw", second_fails)
    for name in ("a", "b"):
        submit(engine, name, prompts[1], GREEDY)
    outputs = drain(engine)
    assert sorted(o.request_id for o in outputs if o.error) == ["a", "b"]
    assert engine.core.stats.blocks_used == 0
    assert list(engine.generate(prompts[1], GREEDY)[0].outputs[0].token_ids) == expected
    assert next(verified) > 3
