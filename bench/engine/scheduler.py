"""Time of schedule() + update() a step, beside vLLM's V1 scheduler on the same loads.

    python -m bench.engine.scheduler [--profile] [--quick]

JAXSERVE_VLLM_PYTHON names an interpreter that has vLLM (bench/peers/setup.sh makes one); without
it only ours is measured. Times are processor time, so that other work on the machine counts less.
The last line is one flat JSON object.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import subprocess
from dataclasses import replace
from pathlib import Path

from bench.common.figures import print_figures
from bench.engine.scheduler_load import Times, TraceConfig, run
from scheduler import Request, Scheduler, SchedulerConfig, StepPlan

PEER = Path(__file__).resolve().parents[1] / "peers" / "vllm_scheduler.py"
TOKEN = 7  # sampled by the fake model
GOALS = {256: 20, 1024: 30}  # by requests running: times faster than the peer


class Ours:
    """Our scheduler with a fake model."""

    def __init__(self, config: TraceConfig) -> None:
        self.scheduler = Scheduler(
            SchedulerConfig(
                num_blocks=config.pool,
                block_size=config.block_size,
                max_num_seqs=config.num_running,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_model_len=1 << 17,
            )
        )

    def add(self, number: int, prompt: list[int], output: int) -> None:
        # The stop id is never sampled, so that the check for stops is part of the time.
        self.scheduler.add_request(
            Request(str(number), prompt, output, stop_token_ids=frozenset((2,)))
        )

    def schedule(self) -> StepPlan:
        plan = self.scheduler.schedule()
        assert plan is not None
        return plan

    def prepare(self, plan: StepPlan) -> tuple[StepPlan, list[int]]:
        return plan, [TOKEN] * (len(plan.decode_slots) + len(plan.chunks))

    def update(self, results: tuple[StepPlan, list[int]]) -> int:
        return len(self.scheduler.update(*results).finished)


def measure(config: TraceConfig) -> Times:
    ours = Ours(config)
    gc.collect()
    return run(config, ours.add, ours.schedule, ours.update, ours.prepare)


class Peer:
    """A process with vLLM's scheduler, which measures one load after another."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, str(PEER)],
            env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def measure(self, config: TraceConfig) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(config.to_json(), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("{"):
                summary: dict[str, float] = json.loads(line)
                return summary
        raise RuntimeError("the peer ended; run bench/peers/vllm_scheduler.py to see why")

    def close(self) -> None:
        self._process.communicate()


def compare(sizes: tuple[int, ...], peer: Peer | None, figures: dict[str, float]) -> None:
    """Prints a line for each load, and adds its figures."""
    heads = ("running", "hits", "ours p50", "p99", "vLLM p50", "p99", "ratio p50", "mean", "goal")
    print("".join(f"{head:>10}" for head in heads), "  (microseconds a step)")
    for config in [TraceConfig(size, hits) for size in sizes for hits in (0.0, 0.5)]:
        name = f"r{config.num_running}_h{config.hit_share * 100:.0f}"
        # Before and after the peer, because the machine's speed drifts.
        times = measure(config)
        theirs = peer.measure(config) if peer else None
        ours = (times + measure(config)).summary()
        figures |= {f"{name}_{key}_us": round(value, 1) for key, value in ours.items()}
        cells = [str(config.num_running), f"{config.hit_share:.0%}"]
        cells += [f"{ours[key]:.0f}" for key in ("p50", "p99")]
        if theirs:
            ratios = {key: theirs[key] / ours[key] for key in ("p50", "mean")}
            figures |= {f"{name}_vllm_{key}_us": round(value, 1) for key, value in theirs.items()}
            figures |= {f"{name}_ratio_{key}": round(value, 1) for key, value in ratios.items()}
            cells += [f"{theirs[key]:.0f}" for key in ("p50", "p99")]
            cells += [f"{value:.1f}" for value in ratios.values()]
            cells.append(str(GOALS.get(config.num_running, "")))
        print("".join(f"{cell:>10}" for cell in cells), flush=True)


def add_long(peer: Peer | None, figures: dict[str, float]) -> None:
    config = TraceConfig(num_running=8, prompt=(4_000, 4_000), output=(5, 10), steps=60)
    figures["add_4000_us"] = round(measure(config).summary()["add_p50"], 1)
    print(f"adding a 4,000-token request, hashing included: {figures['add_4000_us']} us", end="")
    if peer:
        figures["add_4000_vllm_us"] = round(peer.measure(config)["add_p50"], 1)
        print(f"; vLLM {figures['add_4000_vllm_us']} us", end="")
    print()


def sweep(figures: dict[str, float]) -> None:
    """A step of pure decode must not depend on the pool's size or on the context's length."""
    base = TraceConfig(num_running=32, prompt=(250, 250), output=(10_000, 10_000))
    for num_blocks in (10**3, 10**4, 10**5, 10**6):
        p50 = measure(replace(base, num_blocks=num_blocks)).summary()["p50"]
        figures[f"pool_{num_blocks}_p50_us"] = round(p50, 1)
        print(f"pool of {num_blocks:9,} blocks, 32 running: {p50:6.1f} us a step")
    for length in (1_000, 8_000, 64_000):
        p50 = measure(replace(base, prompt=(length, length))).summary()["p50"]
        figures[f"context_{length}_p50_us"] = round(p50, 1)
        print(f"context of {length:7,} tokens, 32 running: {p50:6.1f} us a step")


def profile(config: TraceConfig) -> None:
    profiler = cProfile.Profile()
    profiler.runcall(measure, config)
    statistics = pstats.Stats(profiler)
    statistics.sort_stats("tottime").print_stats("scheduler/|method|built-in", 25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", action="store_true", help="where our time goes, at 256")
    parser.add_argument("--quick", action="store_true", help="256 running and no sweeps")
    arguments = parser.parse_args()
    if arguments.profile:
        profile(TraceConfig(256, hit_share=0.5))
        return
    figures: dict[str, float] = {}
    python = os.environ.get("JAXSERVE_VLLM_PYTHON")
    if not python:
        print("JAXSERVE_VLLM_PYTHON isn't set: ours only (bench/peers/setup.sh makes a peer)")
    peer = Peer(python) if python else None
    compare((256,) if arguments.quick else (32, 256, 1024), peer, figures)
    if not arguments.quick:
        add_long(peer, figures)
        sweep(figures)
    if peer:
        peer.close()
    print_figures(figures)


if __name__ == "__main__":
    main()
