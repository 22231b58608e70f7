"""A steady load for schedulers: N running decodes of about 1,000 tokens, each replaced when it
ends.

Uses the standard library only: the peer's interpreter runs this module too, with the same requests.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import quantiles
from time import thread_time
from typing import Any

VOCABULARY = 32_000
NUM_PREFIXES = 4


@dataclass(frozen=True)
class TraceConfig:
    """One load.

    Args:
        hit_share: share of each prompt that is one of a few common prefixes.
        prompt, output: least and most tokens of each.
        num_blocks: of the pool; None is twice what the running requests need.
    """

    num_running: int
    hit_share: float = 0.0
    steps: int = 300
    prompt: tuple[int, int] = (750, 950)
    output: tuple[int, int] = (100, 400)
    num_blocks: int | None = None
    block_size: int = 16
    max_num_batched_tokens: int = 8192
    seed: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TraceConfig:
        values = json.loads(text)
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})

    @property
    def pool(self) -> int:
        longest = self.prompt[1] + self.output[1]
        return self.num_blocks or 2 * self.num_running * (longest // self.block_size + 1) + 1


class Trace:
    """The requests of a load, in order of arrival: (prompt token ids, output length)."""

    def __init__(self, config: TraceConfig) -> None:
        self.config = config
        self._random = random.Random(config.seed)
        self._prefixes = [self._tokens(config.prompt[1]) for _ in range(NUM_PREFIXES)]

    def _tokens(self, count: int) -> list[int]:
        return self._random.choices(range(10, VOCABULARY), k=count)

    def request(self, running_already: bool = False) -> tuple[list[int], int]:
        """The next request; one that runs from the start has only a part of its output left."""
        length = self._random.randint(*self.config.prompt)
        shared = self._random.choice(self._prefixes)[: int(length * self.config.hit_share)]
        output = self._random.randint(*self.config.output)
        if running_already:
            output = self._random.randint(1, output)
        return shared + self._tokens(length - len(shared)), output


@dataclass
class Times:
    """Seconds of this thread's processor time, in which other work on the machine does not
    count."""

    steps: list[float]
    adds: list[float]

    def __add__(self, other: Times) -> Times:
        return Times(self.steps + other.steps, self.adds + other.adds)

    def summary(self) -> dict[str, float]:
        """Microseconds; a step is schedule() + update(), an add is add_request()."""
        steps = quantiles(self.steps, n=100, method="inclusive")
        adds = quantiles(self.adds, n=100, method="inclusive") if len(self.adds) > 1 else [0.0] * 99
        return {
            "p50": steps[49] * 1e6,
            "p99": steps[98] * 1e6,
            "mean": sum(self.steps) / len(self.steps) * 1e6,
            "add_p50": adds[49] * 1e6,
        }


def run(
    config: TraceConfig,
    add: Callable[[int, list[int], int], Any],
    schedule: Callable[[], Any],
    update: Callable[[Any], int],
    prepare: Callable[[Any], Any],
) -> Times:
    """Drives a scheduler through a load.

    Args:
        add: (id, prompt, output length); timed apart.
        schedule: makes a plan; timed.
        prepare: makes the argument of update (with fake tokens) from a plan; not timed.
        update: takes it and returns how many requests ended; timed.
    """
    trace, times = Trace(config), Times([], [])
    arrived = 0

    def arrive(running_already: bool) -> None:
        nonlocal arrived
        prompt, output = trace.request(running_already)
        start = thread_time()
        add(arrived, prompt, output)
        times.adds.append(thread_time() - start)
        arrived += 1

    def step() -> float:
        start = thread_time()
        plan = schedule()
        planned = thread_time() - start
        results = prepare(plan)
        start = thread_time()
        ended = update(results)
        spent = planned + thread_time() - start
        for _ in range(ended):
            arrive(running_already=False)
        return spent

    for _ in range(config.num_running):
        arrive(running_already=True)
    # Until the first requests have been prefilled, and a little longer.
    tokens = config.num_running * config.prompt[1]
    for _ in range(2 * tokens // config.max_num_batched_tokens + 20):
        step()
    times.adds.clear()
    for _ in range(config.steps):
        times.steps.append(step())
    return times
