"""A step that fails ends the requests it computes, and no others."""

from __future__ import annotations

from typing import Any

import jax
import msgspec
import numpy as np
import pytest

from jaxserve.engine.core import MAX_FAULTS
from jaxserve.engine.llm import LLM
from jaxserve.engine.messages import Output
from jaxserve.errors import EngineError
from jaxserve.sampling.params import SamplingParams, StructuredOutputsParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


class Broken:
    """Stands for a device: the next `times` steps of an engine raise."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self._draw, self._left = llm.core._runner.draw, times
        monkeypatch.setattr(llm.core._runner, "draw", self)

    def __call__(self, *args: Any) -> Any:
        if self._left:
            self._left -= 1
            raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return self._draw(*args)


def submit(llm: LLM, name: str, prompt: list[int]) -> None:
    llm.core.submit(llm._intake.submission(name, prompt, GREEDY))


def drain(llm: LLM) -> list[Output]:
    outputs = []
    while llm.core.has_work:
        outputs += llm.core.step()
    return outputs


@pytest.mark.parametrize("steps", [0, 3])
def test_those_that_wait_go_on(
    llm: LLM, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    expected = llm.generate(prompts[1], GREEDY)[0].outputs[0].token_ids
    places = llm.core.stats.running + 8
    for i in range(places):
        submit(llm, f"lost {i}", [65 + i] * (1 if steps else 40))
    submit(llm, "waits", prompts[1])
    for _ in range(steps):
        llm.core.step()
    Broken(llm, monkeypatch, times=1)
    outputs = drain(llm)
    failed = {o.request_id: o.error or "" for o in outputs if o.error_kind == "EngineError"}
    assert failed
    assert all(name.startswith("lost") for name in failed)
    assert all("out of memory" in reason for reason in failed.values())
    if steps:
        assert len(failed) == places
    tokens = [t for o in outputs if o.request_id == "waits" for t in o.token_ids]
    assert tuple(tokens) == expected
    ended = {o.request_id for o in outputs if o.finish_reason or o.error}
    assert len(ended) == places + 1
    assert llm.core.stats.blocks_used == 0
    assert llm.generate(prompts[1], GREEDY)[0].outputs[0].token_ids == expected


def test_an_engine_that_fails_again_and_again_gives_up(
    llm: LLM, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    Broken(llm, monkeypatch, times=MAX_FAULTS + 1)
    for i in range(MAX_FAULTS):
        submit(llm, str(i), prompts[0])
        assert [o.error_kind for o in drain(llm) if o.error] == ["EngineError"]
    submit(llm, "last", prompts[0])
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        drain(llm)


def test_a_request_whose_sampling_breaks_fails_alone(
    llm: LLM, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = llm.generate(prompts[1], GREEDY)[0].outputs[0].token_ids
    broken = SamplingParams(max_tokens=4, logit_bias={1: 1.0})
    message = llm._intake.submission("bad", prompts[0], broken)
    message.params.logit_bias["no token"] = 1.0  # type: ignore[index]
    llm.core.submit(message)
    submit(llm, "good", prompts[1])
    outputs = drain(llm)
    assert [o.error_kind for o in outputs if o.request_id == "bad" and o.error] == ["EngineError"]
    assert tuple(t for o in outputs if o.request_id == "good" for t in o.token_ids) == expected
    assert llm.core.stats.blocks_used == 0


def test_a_request_that_cannot_be_taken_in_fails_alone(llm: LLM, prompts: list[list[int]]) -> None:
    expected = llm.generate(prompts[1], GREEDY)[0].outputs[0].token_ids
    submit(llm, "good", prompts[1])
    message = llm._intake.submission("bad", prompts[0], GREEDY)
    refused = llm.core.submit(msgspec.structs.replace(message, bad_words=[[10**6]]))
    assert refused is not None
    assert refused.error_kind == "EngineError"
    tokens = [t for o in drain(llm) if o.request_id == "good" for t in o.token_ids]
    assert tuple(tokens) == expected


def test_a_grammar_whose_compiler_breaks_fails_that_request_alone(
    llm: LLM, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: StructuredOutputsParams) -> None:
        raise ValueError("no such vocabulary")

    expected = llm.generate(prompts[1], GREEDY)[0].outputs[0].token_ids
    with monkeypatch.context() as patched:
        patched.setattr(llm.core._grammars, "_compile", broken)
        params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
        with pytest.raises(EngineError, match="no such vocabulary"):
            llm.generate(prompts[0], params)
    assert llm.generate(prompts[1], GREEDY)[0].outputs[0].token_ids == expected


def test_samples_that_break_in_one_step_fail_their_request_alone(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, steps = llm.core._runner.draw, 0

    def without_tokens(*args: Any) -> Any:
        nonlocal steps
        steps += 1
        handle = draw(*args)
        if steps == 4:  # the second sample, a step behind, fills its block with this token
            none = jax.device_put(np.full(handle.output.ids.shape, -1, np.int32))
            handle.output = handle.output._replace(ids=none)
        return handle

    two = SamplingParams(n=2, temperature=0, max_tokens=12, ignore_eos=True)
    with monkeypatch.context() as patched:
        patched.setattr(llm.core._runner, "draw", without_tokens)
        with pytest.raises(EngineError, match="no token could be drawn"):
            llm.generate([65] * (llm.config.block_size - 3), two)
    assert llm.core.stats.blocks_used == 0
