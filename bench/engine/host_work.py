"""The host's work in each turn of the engine's loop."""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax
import numpy as np

from jaxserve import LLM, SamplingParams
from jaxserve.engine.device.pending_step import PendingStep


class HostClock:
    """Times each turn of an engine's loop, without the time for which it waits for the device.

    Args:
        turns: seconds of each turn so far.
    """

    def __init__(self, llm: LLM) -> None:
        self.turns: list[float] = []
        self._waited = 0.0
        core, wait = llm.core, PendingStep.wait

        def timed_wait(handle: PendingStep) -> Any:
            begin = time.perf_counter()
            jax.block_until_ready(handle.output.ids)
            self._waited += time.perf_counter() - begin
            return wait(handle)

        def timed_step() -> Any:
            begin, self._waited = time.perf_counter(), 0.0
            outputs = step()
            self.turns.append(time.perf_counter() - begin - self._waited)
            return outputs

        step = core.step
        core.step = timed_step  # type: ignore[method-assign]
        PendingStep.wait = timed_wait  # type: ignore[method-assign]


def host_work(llm: LLM, name: str, running: int, tokens: int) -> dict[str, float]:
    """With so many decodes running: microseconds a step of host work, of an idle device and in all,
    and output tokens a second."""
    clock = HostClock(llm)
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    batch = _prompts(running, 16, 256)
    for i, prompt in enumerate(batch):
        llm.core.submit(llm._validator.submission(f"{name}{i}", prompt, params))
    while llm.core.stats.waiting or not clock.turns:
        llm.core.step()
    clock.turns.clear()
    before = llm.core.report().idle_s
    given, begin = 0, time.perf_counter()
    while llm.core.stats.running == running and given < running * (tokens - 20):
        given += sum(len(output.token_ids) for output in llm.core.step())
    wall, steps = time.perf_counter() - begin, given / running
    idle = llm.core.report().idle_s - before
    for i in range(running):
        llm.core.abort(f"{name}{i}")
    while llm.core.has_work:
        llm.core.step()
    a_turn = llm.config.decode_steps
    turns = sorted(seconds / a_turn for seconds in clock.turns[: round(steps / a_turn)])
    return {
        f"{name}_r{running}_host_p50_us": round(statistics.median(turns) * 1e6, 1),
        f"{name}_r{running}_host_p99_us": round(turns[int(len(turns) * 0.99)] * 1e6, 1),
        f"{name}_r{running}_idle_us": round(idle / steps * 1e6, 1),
        f"{name}_r{running}_step_us": round(wall / steps * 1e6, 1),
        f"{name}_r{running}_tok_s": round(given / wall, 1),
    }


def _prompts(count: int, length: int, vocab: int) -> list[list[int]]:
    """Random prompts, of which no two share a cached block."""
    rng = np.random.default_rng(count)
    return rng.integers(10, vocab - 10, (count, length)).tolist()
