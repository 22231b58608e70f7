"""A step that fails ends the requests it computes, and no others."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import jax
import msgspec
import numpy as np
import pytest

from jaxserve.engine.core import grammar_queue
from jaxserve.engine.core.grammar_queue import QUICK_THREADS, GrammarQueue
from jaxserve.engine.core.protocol import Output, Submit
from jaxserve.engine.device import sampling_state
from jaxserve.engine.device.pending_step import PendingStep
from jaxserve.engine.frontend.llm import LLM
from jaxserve.errors import EngineError, InvalidRequestError
from jaxserve.sampling import grammar_trial
from jaxserve.sampling.grammar import MAX_SOURCE, Grammar, GrammarCompiler, GrammarState
from jaxserve.sampling.params import SamplingParams, StructuredOutputsParams
from tests.engine_steps import drain, submit

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a slow machine fails no test."""
    monkeypatch.setattr(grammar_queue, "WAIT_S", 1000.0)
    monkeypatch.setattr(grammar_trial, "TIMEOUT_S", 1000.0)


class Broken:
    """A device whose next `times` steps raise; those without requests only if `always`."""

    def __init__(
        self, llm: LLM, monkeypatch: pytest.MonkeyPatch, times: int, always: bool = False
    ) -> None:
        self._draw, self._left, self._always = llm.core._runner.draw, times, always
        monkeypatch.setattr(llm.core._runner, "draw", self)

    def __call__(self, step: PendingStep) -> None:
        if self._left and (step.rows or self._always):
            self._left -= 1
            raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")
        self._draw(step)


@pytest.mark.parametrize("steps", [0, 3])
def test_requests_that_wait_go_on(
    llm: LLM, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    expected = llm.generate(prompts[1], GREEDY)[0].outputs[0].token_ids
    places = llm.core.stats.running + 8
    for i in range(places):
        submit(llm, f"lost {i}", [65 + i] * (1 if steps else 40), GREEDY)
    submit(llm, "waits", prompts[1], GREEDY)
    for _ in range(steps):
        llm.core.step()
    jax.clear_caches()  # jit may have dropped its programs when a step fails
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


def test_requests_that_fail_step_after_step_do_not_end_the_engine(
    llm: LLM, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = llm.generate(prompts[1], GREEDY)[0].outputs[0].token_ids
    Broken(llm, monkeypatch, times=10)
    for i in range(10):
        submit(llm, str(i), prompts[0], GREEDY)
        assert [o.error_kind for o in drain(llm) if o.error] == ["EngineError"]
    assert llm.generate(prompts[1], GREEDY)[0].outputs[0].token_ids == expected


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_each_request_ends_once_when_a_draw_fails_that_awaited_tokens(
    llm: LLM, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    ends = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    follows = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, bad_words=["ab"])
    for name, params in (("ends", ends), ("follows", follows)):
        llm.core.submit(llm._validator.submission(name, prompts[0], params))
    outputs = []
    for _ in range(steps):
        outputs += llm.core.step()
    Broken(llm, monkeypatch, times=1)
    outputs += drain(llm)
    ended = [o.request_id for o in outputs if o.error or o.finish_reason]
    assert sorted(ended) == ["ends", "follows"]


def test_an_engine_that_fails_without_requests_too_gives_up(
    llm: LLM, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    Broken(llm, monkeypatch, times=2, always=True)
    submit(llm, "last", prompts[0], GREEDY)
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        drain(llm)


def test_a_request_whose_sampling_breaks_fails_alone(
    llm: LLM, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = llm.generate(prompts[1], GREEDY)[0].outputs[0].token_ids
    broken = SamplingParams(max_tokens=4, logit_bias={1: 1.0})
    message = llm._validator.submission("bad", prompts[0], broken)
    message.params.logit_bias["no token"] = 1.0  # type: ignore[index]
    llm.core.submit(message)
    submit(llm, "good", prompts[1], GREEDY)
    outputs = drain(llm)
    assert [o.error_kind for o in outputs if o.request_id == "bad" and o.error] == ["EngineError"]
    assert tuple(t for o in outputs if o.request_id == "good" for t in o.token_ids) == expected
    assert llm.core.stats.blocks_used == 0


def test_a_request_that_cannot_be_added_fails_alone(llm: LLM, prompts: list[list[int]]) -> None:
    expected = llm.generate(prompts[1], GREEDY)[0].outputs[0].token_ids
    submit(llm, "good", prompts[1], GREEDY)
    message = llm._validator.submission("bad", prompts[0], GREEDY)
    refused = llm.core.submit(msgspec.structs.replace(message, bad_words=[[10**6]]))
    assert refused is not None
    assert refused.error_kind == "EngineError"
    tokens = [t for o in drain(llm) if o.request_id == "good" for t in o.token_ids]
    assert tuple(tokens) == expected


def test_a_grammar_whose_compiler_breaks_fails_that_request_alone(
    llm: LLM, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such vocabulary")

    expected = llm.generate(prompts[1], GREEDY)[0].outputs[0].token_ids
    with monkeypatch.context() as patched:
        patched.setattr(GrammarCompiler, "__init__", broken)
        GrammarQueue(llm.tokenizer, 1).prepare()
    with monkeypatch.context() as patched:
        patched.setattr(GrammarCompiler, "compile", broken)
        params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
        with pytest.raises(EngineError, match="no such vocabulary"):
            llm.generate(prompts[0], params)
    assert llm.generate(prompts[1], GREEDY)[0].outputs[0].token_ids == expected


def test_a_grammar_too_complex_to_follow_fails_that_request_alone(
    llm: LLM, prompts: list[list[int]]
) -> None:
    """After one token: more alternatives than a parser's row may hold."""
    expected = llm.generate(prompts[1], GREEDY)[0].outputs[0].token_ids
    grammar = "start: " + " | ".join(f'"w{i} x"' for i in range(2100))
    params = SamplingParams(structured_outputs=StructuredOutputsParams(grammar=grammar))
    llm.core.submit(llm._validator.submission("bad", prompts[0], params))
    submit(llm, "good", prompts[1], GREEDY)
    outputs = drain(llm)
    (failure,) = [o for o in outputs if o.error]
    assert (failure.request_id, failure.error_kind) == ("bad", "InvalidRequestError")
    assert "too complex" in (failure.error or "")
    assert tuple(t for o in outputs if o.request_id == "good" for t in o.token_ids) == expected


# 79 characters that take a minute of processor time to compile, and gigabytes.
HOSTILE = '{"type": "integer", "multipleOf": %d}'


def with_grammar(llm: LLM, name: str, **grammar: Any) -> Submit:
    params = SamplingParams(
        temperature=0, max_tokens=4, structured_outputs=StructuredOutputsParams(**grammar)
    )
    return llm._validator.submission(name, [65], params)


def submit_grammar(llm: LLM, name: str, **grammar: Any) -> None:
    assert llm.core.submit(with_grammar(llm, name, **grammar)) is None


@pytest.mark.slow
def test_grammars_that_compile_without_end_are_stopped(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than there are threads: others don't wait for them, and none is tried again."""
    monkeypatch.setattr(grammar_queue, "SLOW_S", 1)
    queue = GrammarQueue(llm.tokenizer, llm.core._vocab)
    monkeypatch.setattr(llm.core, "_grammars", queue)
    hostile = [f"hostile {i}" for i in range(QUICK_THREADS + 1)]
    for i, name in enumerate(hostile):
        submit_grammar(llm, name, json=HOSTILE % (9999991 + 2 * i))
    submit_grammar(llm, "good", regex="[a-z]{3}")
    outputs = drain(llm)
    failed = {o.request_id: o for o in outputs if o.error}
    assert sorted(failed) == hostile
    assert {o.error_kind for o in failed.values()} == {"InvalidRequestError"}
    assert all("1 s of processor time" in (o.error or "") for o in failed.values())
    assert [o.finish_reason for o in outputs if o.request_id == "good"][-1] == "stop"
    again = llm.core.submit(with_grammar(llm, "again", json=HOSTILE % 9999991))
    assert again is not None
    assert again.error == failed["hostile 0"].error
    queue.close()


@pytest.mark.slow
def test_a_slow_grammar_delays_no_quick_one_and_ends_with_its_request(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_queue, "SLOW_S", 1000)
    queue = GrammarQueue(llm.tokenizer, llm.core._vocab)
    monkeypatch.setattr(llm.core, "_grammars", queue)
    submit_grammar(llm, "slow", json=HOSTILE % 9999991)
    (job,) = queue._jobs.values()
    while not job.is_slow:
        assert llm.core.step() == []
    quick = [f"quick {i}" for i in range(QUICK_THREADS + 1)]
    for i, name in enumerate(quick):
        submit_grammar(llm, name, regex=f"[a-z]{{{i + 1}}}")
    ends: list[str] = []
    while len(ends) < len(quick):
        ends += [o.request_id for o in llm.core.step() if o.finish_reason]
    assert sorted(ends) == quick
    while not job.grammar.running():
        llm.core.step()
    llm.core.abort("slow")
    assert not [o for o in drain(llm) if o.request_id == "slow"]
    assert isinstance(job.grammar.exception(), EngineError)
    queue.close()


def hold_compiling(monkeypatch: pytest.MonkeyPatch, but: str) -> tuple[threading.Event, list[str]]:
    """All regexes but one compile only once the event is set. Also a list of those begun."""
    compile_, held, begun = GrammarCompiler.compile, threading.Event(), []

    def compiling(self: GrammarCompiler, params: StructuredOutputsParams) -> Grammar:
        begun.append(params.regex)
        if params.regex != but:
            held.wait(1000)
        return compile_(self, params)

    monkeypatch.setattr(GrammarCompiler, "compile", compiling)
    return held, begun


def test_a_grammar_asked_for_by_many_is_compiled_once_and_kept(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, begun = hold_compiling(monkeypatch, but="known")
    submit_grammar(llm, "first", regex="known")
    drain(llm)
    slow = [f"w{i}+" for i in range(QUICK_THREADS)]
    for i in range(4):
        for regex in slow:
            submit_grammar(llm, f"{regex} {i}", regex=regex)
    submit_grammar(llm, "second", regex="known")
    finished: list[str] = []
    while "second" not in finished:  # while others hold all threads
        finished += [o.request_id for o in llm.core.step() if o.finish_reason]
    assert finished == ["second"]
    held.set()
    ends = [o.request_id for o in drain(llm) if o.finish_reason]
    assert len(ends) == 4 * len(slow)
    assert sorted(begun) == ["known", *slow]


def test_requests_that_wait_for_a_grammar_count_as_queued(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, _ = hold_compiling(monkeypatch, but="")
    config = replace(llm.core._scheduler.config, max_queued_requests=3)
    monkeypatch.setattr(llm.core._scheduler, "config", config)
    for name in ("a", "b", "c"):
        submit_grammar(llm, name, regex=f"{name}{{2}}")
    assert llm.core.stats.waiting == 3
    late = llm._validator.submission("late", [65], GREEDY)
    refused = llm.core.submit(late)
    assert refused is not None
    assert refused.error_kind == "OverloadedError"
    llm.core.abort("b")
    assert llm.core.submit(late) is None
    held.set()
    ends = {o.request_id for o in drain(llm) if o.finish_reason}
    assert ends == {"a", "c", "late"}
    assert llm.core.stats.waiting == 0


def test_a_grammar_that_no_thread_is_free_for_is_refused(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, begun = hold_compiling(monkeypatch, but="z")
    for i in range(QUICK_THREADS):
        submit_grammar(llm, f"slow {i}", regex=f"[a-z]{{{i + 4}}}")
    while len(begun) < QUICK_THREADS:
        assert llm.core.step() == []
    submit_grammar(llm, "late", regex="z")
    assert llm.core.step() == []
    monkeypatch.setattr(grammar_queue, "WAIT_S", 0.0)
    refused = llm.core.step()
    assert [(o.request_id, o.error_kind) for o in refused] == [("late", "OverloadedError")]
    held.set()
    ends = {o.request_id: o.finish_reason for o in drain(llm) if o.finish_reason}
    assert len(ends) == QUICK_THREADS


def test_signs_of_life_are_given_while_many_masks_are_computed(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two of them the engine gives signs of life, and lets requests be aborted."""
    mask, events = GrammarState.mask, []

    def recorded(self: GrammarState, *args: Any) -> np.ndarray:
        events.append("mask")
        return mask(self, *args)

    def meanwhile() -> None:
        if events.count("mask") == 1:
            llm.core.abort("leaves")
        events.append("meanwhile")

    monkeypatch.setattr(sampling_state, "MEANWHILE_S", -1.0)
    monkeypatch.setattr(GrammarState, "mask", recorded)
    submit_grammar(llm, "known", regex="[a-z]{3}")
    drain(llm)
    events.clear()
    for name in ("stays", "leaves", "stays, too"):
        submit_grammar(llm, name, regex="[a-z]{3}")
    outputs: list[Output] = []
    while llm.core.has_work:
        outputs += llm.core.step(meanwhile)
    assert ("mask", "mask") not in itertools.pairwise(events)
    assert events.count("mask") >= 6
    assert {o.request_id for o in outputs if o.token_ids} == {"stays", "stays, too"}
    assert len([o for o in outputs if o.finish_reason == "stop"]) == 2
    assert llm.core.stats.blocks_used == 0


def test_a_deep_grammar_is_compiled_and_a_longer_one_refused(llm: LLM) -> None:
    """A chain of rules, in which llguidance recurses."""
    rules = "\n".join(f'r{i}: "a" r{i + 1} | "b"' for i in range(6000))
    chain = f'start: r0\n{rules}\nr6000: "z"'
    params = SamplingParams(
        structured_outputs=StructuredOutputsParams(grammar=chain), max_tokens=3, temperature=0
    )
    assert llm.generate([65], params)[0].outputs[0].text in ("aaa", "aab", "ab", "b")
    long = StructuredOutputsParams(regex="a" * (MAX_SOURCE + 1))
    with pytest.raises(InvalidRequestError, match="characters"):
        llm.generate([65], SamplingParams(structured_outputs=long))


def test_samples_that_break_in_one_step_fail_their_request_alone(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, steps = llm.core._runner.draw, 0

    def without_tokens(step: PendingStep) -> None:
        nonlocal steps
        steps += 1
        draw(step)
        if steps == 4:  # the second sample, a step behind, fills its block with this token
            assert step.output is not None
            none = jax.device_put(np.full(step.output.ids.shape, -1, np.int32))
            step.output = step.output._replace(ids=none)

    two = SamplingParams(n=2, temperature=0, max_tokens=12, ignore_eos=True)
    with monkeypatch.context() as patched:
        patched.setattr(llm.core._runner, "draw", without_tokens)
        with pytest.raises(EngineError, match="no token could be drawn"):
            llm.generate([65] * (llm.config.block_size - 3), two)
    assert llm.core.stats.blocks_used == 0


@pytest.mark.parametrize("pool", ["_quick", "_slow"])
def test_a_grammar_that_no_thread_can_be_started_for_fails_alone(
    llm: LLM, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, pool: str
) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    queue = GrammarQueue(llm.tokenizer, llm.core._vocab)
    monkeypatch.setattr(llm.core, "_grammars", queue)
    monkeypatch.setattr(getattr(queue, pool)._pool, "submit", no_thread)
    if pool == "_slow":
        too_slow: Future[Grammar] = Future()
        too_slow.set_exception(grammar_trial.TooSlowError("too slow"))
        monkeypatch.setattr(queue._quick, "compile", lambda _: too_slow)
    submit_grammar(llm, "refused", regex="[a-y]{3}")
    submit(llm, "goes on", prompts[0], GREEDY)
    outputs = drain(llm)
    assert [o.error_kind for o in outputs if o.error] == ["OverloadedError"]
    assert [o.finish_reason for o in outputs if o.request_id == "goes on"][-1] == "length"
    queue.close()
