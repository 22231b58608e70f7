"""The real engine with the same arrivals: to fit a cost model, and to check the simulation.

Lengths, longest sequence and pool are a quarter of the paper's, so that as many requests fit as
there and a run takes a minute.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.paper.allocators import PAGED, System
from bench.paper.clock import Arrival
from bench.paper.costs import Load, Loads, Measured
from jaxserve import LLM, SamplingParams
from jaxserve.engine.device.buckets import BucketTable
from scheduler import Scheduler, SchedulerConfig, StepPlan, StepResult

SCALE = 4
CONFIG = SchedulerConfig(
    num_blocks=15_728 // SCALE // 8 + 1,
    block_size=8,
    max_num_seqs=64,
    max_num_batched_tokens=512,
    max_model_len=2048 // SCALE,
    enable_prefix_caching=False,
)
BYTES_PER_BLOCK = CONFIG.block_size * 30 * 2 * 3 * 64 * 4  # SmolLM2-135M, float32
ROWS = (1, 4, 8, 16, 32, 48, 64)  # of the calibration's batches
Steps = list[tuple[Load, float]]


def open_engine() -> LLM:
    llm = LLM(
        "smollm2-135m",
        progress=False,
        block_size=CONFIG.block_size,
        kv_cache_memory=CONFIG.num_blocks * BYTES_PER_BLOCK,
        max_num_seqs=CONFIG.max_num_seqs,
        max_num_batched_tokens=CONFIG.max_num_batched_tokens,
        max_model_len=CONFIG.max_model_len,
        enable_prefix_caching=False,
    )
    assert llm.core.ready.num_blocks == CONFIG.num_blocks
    return llm


@dataclass(frozen=True, slots=True)
class RealRun:
    """Args:
    latency: as Outcome.latency.
    steps: load and seconds of each turn of the loop, host work included.
    """

    latency: float
    tokens_s: float
    preemptions: int
    steps: Steps


class PlanWatch:
    """Follows a scheduler's plans, by wrapping its schedule() and update()."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._schedule, self._update = scheduler.schedule, scheduler.update
        self._loads, self._pending = Loads(), dict[int, Load]()
        self._completed: list[Load] = []
        scheduler.schedule = self._watched_schedule  # type: ignore[method-assign]
        scheduler.update = self._watched_update  # type: ignore[method-assign]

    def take_completed(self) -> list[Load]:
        """The loads of the steps whose results have come since the last call."""
        taken, self._completed = self._completed, []
        return taken

    def remove(self) -> None:
        self._scheduler.schedule = self._schedule  # type: ignore[method-assign]
        self._scheduler.update = self._update  # type: ignore[method-assign]

    def _watched_schedule(self) -> StepPlan | None:
        plan = self._schedule()
        if plan is not None:
            self._pending[plan.step] = self._loads.read(plan)
        return plan

    def _watched_update(self, plan: StepPlan, *arguments: Any) -> StepResult:
        self._completed.append(self._pending.pop(plan.step))
        return self._update(plan, *arguments)


def drive(llm: LLM, system: System, arrivals: list[Arrival]) -> RealRun:
    """Runs requests of random tokens as they arrive, greedy and at full length, to their end."""
    core = llm.core
    system.install(core._scheduler)
    watch = PlanWatch(core._scheduler)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(10, 40_000, arrival.prompt).tolist() for arrival in arrivals]
    to_come = deque(enumerate(arrivals))
    steps: Steps = []
    latency, before, begin = 0.0, core.stats.preemptions, time.perf_counter()
    while to_come or core.has_work:
        now = time.perf_counter() - begin
        while to_come and to_come[0][1].at <= now:
            number, arrival = to_come.popleft()
            params = SamplingParams(temperature=0, max_tokens=arrival.output, ignore_eos=True)
            core.submit(llm._validator.submission(str(number), prompts[number], params))
        if not core.has_work:
            time.sleep(to_come[0][1].at - now)
            continue
        started = time.perf_counter()
        outputs = core.step()
        ended = time.perf_counter()
        steps += [(load, ended - started) for load in watch.take_completed()]
        for output in outputs:
            assert output.error is None, output.error
            if output.finish_reason is not None:
                arrival = arrivals[int(output.request_id)]
                latency += (ended - begin - arrival.at) / arrival.output
    seconds = time.perf_counter() - begin
    watch.remove()
    return RealRun(
        latency / len(arrivals),
        sum(arrival.output for arrival in arrivals) / seconds,
        core.stats.preemptions - before,
        steps,
    )


def calibrate(llm: LLM, rows_tried: tuple[int, ...] = ROWS, output: int = 12) -> Measured:
    """A cost model of the engine, fitted to batches that together use every bucket."""
    steps: Steps = []
    rng = np.random.default_rng(1)
    for rows in rows_tried:
        for prompt in (10, 40) if rows > 16 else (10, 150):
            lengths = rng.integers(max(1, prompt // 2), prompt * 3 // 2, rows)
            # Some arrive later, so that steps have both chunks and decodes.
            arrivals = [
                Arrival(0.0 if i < 0.7 * rows else 0.3, int(n), output)
                for i, n in enumerate(lengths)
            ]
            steps += drive(llm, PAGED, arrivals).steps
    table = BucketTable.build(CONFIG.max_num_seqs, CONFIG.max_num_batched_tokens)
    return Measured.fit(table, steps)
