"""Simulated time: the real scheduler, with a cost model in place of the device."""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, replace

from bench.paper.allocators import System
from bench.paper.costs import Cost, Loads
from bench.paper.usage import Usage, usage
from jaxserve.bench.arrivals import arrival_times
from jaxserve.bench.datasets import LENGTHS
from scheduler import Request, Scheduler, SchedulerConfig, Sequence

SAMPLE_EVERY = 16  # steps between two readings of the pool


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of so many tokens, at a time in seconds."""

    at: float
    prompt: int
    output: int


def make_arrivals(
    trace: str, rate: float, seconds: float, scale: int = 1, seed: int = 0
) -> list[Arrival]:
    """A Poisson process with a trace's lengths, these divided by `scale`."""
    draws = random.Random(f"lengths-{seed}")
    count = max(1, round(rate * seconds))
    times = arrival_times(count, rate, seed=seed)
    lengths = [LENGTHS[trace].draw(draws) for _ in times]
    return [
        Arrival(at, max(1, round(prompt / scale)), max(1, round(output / scale)))
        for at, (prompt, output) in zip(times, lengths, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one run.

    Args:
        latency: mean over requests of latency / output tokens, seconds a token.
        batched: mean sequences that run, over time, while requests still arrive.
        usage: mean shares of the pool over the same time, while requests queue; all 0 if none
            ever did.
        tokens_s: output tokens a second, over the whole run.
        preemptions: of the whole run.
    """

    latency: float
    batched: float
    usage: Usage
    tokens_s: float
    preemptions: int


class _Means:
    """Means weighted by time."""

    def __init__(self) -> None:
        self.batched = self.seconds = self.queued = 0.0
        self.usage = Usage()

    def add(self, seconds: float, batched: int) -> None:
        self.seconds += seconds
        self.batched += seconds * batched

    def add_usage(self, seconds: float, reading: Usage) -> None:
        self.queued += seconds
        self.usage = self.usage.plus(reading, seconds / reading.total)


def simulate(
    config: SchedulerConfig,
    system: System,
    arrivals: list[Arrival],
    cost: Cost,
    to_the_end: bool = True,
) -> Outcome:
    """Runs all requests. Steps don't overlap, so plans see all results.

    Args:
        to_the_end: False stops at the last arrival; latency and tokens_s are meaningless then.
    """
    scheduler, loads = Scheduler(config), Loads()
    system.install(scheduler)
    paged = system.reserve is None
    to_come = deque(arrivals)
    origin: dict[str, Arrival] = {}
    queue: deque[Sequence] = deque()  # in order of arrival: the policy is fcfs
    running: dict[Sequence, None] = {}
    batch: list[Arrival] = []  # finished, but not yet answered
    means, now, latency, steps = _Means(), 0.0, 0.0, 0
    while to_come or (to_the_end and scheduler.has_unfinished):
        while to_come and to_come[0].at <= now:
            arrival = to_come.popleft()
            name = str(len(origin))
            origin[name] = arrival
            request = Request(name, [0] * arrival.prompt, arrival.output)
            queue.append(scheduler.add_request(request))
        plan = scheduler.schedule()
        if plan is None:
            now = to_come[0].at
            continue
        for start in plan.starts:
            running[start.sequence] = None
        while queue and queue[0] in running:
            queue.popleft()
        seconds = cost.seconds(loads.read(plan), paged)
        now += seconds
        if to_come:
            means.add(seconds, len(running))
            if queue and steps % SAMPLE_EVERY == 0:
                holders = [s for s in running if s.tables]
                means.add_usage(seconds, usage(scheduler, holders, queue[0]))
        steps += 1
        result = scheduler.update(plan, [0] * (len(plan.decode_slots) + len(plan.chunks)))
        for sequence in result.finished:
            del running[sequence]
            batch.append(origin[sequence.request.request_id])
        if not (system.whole_batches and running):
            latency += sum((now - arrival.at) / arrival.output for arrival in batch)
            batch.clear()
    return Outcome(
        latency / len(arrivals),
        means.batched / means.seconds if means.seconds else math.nan,
        Usage().plus(means.usage, 1 / means.queued) if means.queued else Usage(),
        sum(arrival.output for arrival in arrivals) / now,
        scheduler.stats().preemptions,
    )


@dataclass(frozen=True, slots=True)
class Point:
    """A request rate and the run at it."""

    rate: float
    outcome: Outcome


def sweep(
    config: SchedulerConfig,
    system: System,
    trace: str,
    cost: Cost,
    rates: list[float],
    seconds: float,
    scale: int = 1,
    worst: float = 1.0,
) -> list[Point]:
    """Rates in rising order, up to the first whose latency is beyond `worst`."""
    points: list[Point] = []
    for rate in rates:
        arrivals = make_arrivals(trace, rate, seconds, scale)
        points.append(Point(rate, simulate(config, system, arrivals, cost)))
        if points[-1].outcome.latency > worst:
            break
    return points


def rate_at(points: list[Point], latency: float) -> float:
    """The rate at which a curve reaches a latency, by linear interpolation; NaN if it doesn't."""
    before = Point(0.0, replace(points[0].outcome, latency=0.0))
    for point in points:
        low, high = before.outcome.latency, point.outcome.latency
        if high >= latency:
            return before.rate + (point.rate - before.rate) * (latency - low) / (high - low)
        before = point
    return math.nan
