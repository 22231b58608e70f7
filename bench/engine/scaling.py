"""How the cost of a step grows, and what the prefix cache saves and costs.

    python -m bench.engine.scaling [--quick] [--folder build/scaling]

The demo model on this machine: time of a decode step and of the host's part of it, by context,
batch and pool; TTFT and throughput by the share of prompt tokens found in the prefix cache; and
what the cache costs when nothing is found, with the cache on and off in turns. Writes scaling.json
and scaling.png (with matplotlib). Limit: other work on the machine slows steps, and the smallest
differences are below that noise, so they come with their spread. The last line is one flat JSON
object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.common.figures import print_figures
from bench.engine.host_work import HostClock
from jaxserve import LLM, SamplingParams
from jaxserve.config import MIB

MODEL = "smollm2-135m"
BLOCK = 16
PROMPT = 512  # tokens, of the prefix cache's gain
HITS = (0.0, 0.25, 0.5, 0.75, 0.9)
Figures = dict[str, float]


class Bench:
    """One engine, and prompts that are never repeated."""

    def __init__(self, **settings: object) -> None:
        self.llm = LLM(MODEL, progress=False, **settings)
        self._clock = HostClock(self.llm)
        self._rng = np.random.default_rng(0)
        self._names = map(str, itertools.count())
        self.run(1, 20, 2)

    def tokens(self, count: int) -> list[int]:
        ids: list[int] = self._rng.integers(10, 40_000, count).tolist()
        return ids

    def submit(self, prompt: list[int], output: int) -> str:
        params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
        name = next(self._names)
        refused = self.llm.core.submit(self.llm._validator.submission(name, prompt, params))
        assert refused is None, refused
        return name

    def run(self, rows: int, prompt: int, output: int) -> float:
        """Seconds of a batch of new prompts."""
        begin = time.perf_counter()
        for _ in range(rows):
            self.submit(self.tokens(prompt), output)
        while self.llm.core.has_work:
            self.llm.core.step()
        return time.perf_counter() - begin

    def decode(self, rows: int, context: int, steps: int) -> tuple[float, float]:
        """Median seconds of a step of so many decodes, and of the host's part of it."""
        core, walls = self.llm.core, []
        names = [self.submit(self.tokens(context), steps + 60) for _ in range(rows)]
        without_token = set(names)
        while without_token:
            without_token -= {output.request_id for output in core.step() if output.token_ids}
        self._clock.turns.clear()
        for _ in range(steps):
            begin = time.perf_counter()
            core.step()
            walls.append(time.perf_counter() - begin)
        host = statistics.median(self._clock.turns)
        for name in names:
            core.abort(name)
        while core.has_work:
            core.step()
        return statistics.median(walls), host

    def close(self) -> None:
        self.llm.core.close()


def decodes(bench: Bench, name: str, points: list[tuple[str, int, int]], steps: int) -> Figures:
    """Args: points: (label, rows, context)."""
    figures = {}
    for label, rows, context in points:
        step, host = bench.decode(rows, context, steps)
        figures[f"{name}_{label}_step_ms"] = step * 1e3
        figures[f"{name}_{label}_host_us"] = host * 1e6
        shown = f"{step * 1e3:7.1f} ms a step, host {host * 1e6:6.0f} us"
        print(f"{name} {label:>8}: {shown}", flush=True)
    return figures


def gain(bench: Bench, requests: int, rounds: int) -> Figures:
    """What prefix cache hits save: TTFT of one prompt, and requests a second of a batch with 16
    output tokens each."""
    core, figures = bench.llm.core, {}
    for share in HITS:
        prefix = bench.tokens(round(PROMPT * share / BLOCK) * BLOCK)
        bench.submit(prefix + bench.tokens(PROMPT - len(prefix)), 1)
        while core.has_work:
            core.step()
        firsts = []
        for _ in range(rounds):
            prompt = prefix + bench.tokens(PROMPT - len(prefix))
            begin = time.perf_counter()
            bench.submit(prompt, 1)
            while core.has_work:
                core.step()
            firsts.append(time.perf_counter() - begin)
        before, begin = core.stats, time.perf_counter()
        for _ in range(requests):
            bench.submit(prefix + bench.tokens(PROMPT - len(prefix)), 16)
        while core.has_work:
            core.step()
        seconds = time.perf_counter() - begin
        after = core.stats
        looked = after.prefix_queries - before.prefix_queries
        hit = (after.prefix_hits - before.prefix_hits) / looked
        key = f"hits{share * 100:.0f}"
        figures[f"{key}_found_percent"] = 100 * hit
        figures[f"{key}_ttft_ms"] = statistics.median(firsts) * 1e3
        figures[f"{key}_requests_per_s"] = requests / seconds
        shown = f"TTFT {figures[f'{key}_ttft_ms']:.0f} ms, {requests / seconds:.2f} requests/s"
        print(f"{100 * hit:5.1f} % of prompt tokens found: {shown}", flush=True)
    return figures


def cost(bench: Bench, rounds: int) -> Figures:
    """What hashing, looking up and keeping blocks costs when no prompts share a prefix: the same
    engine with its cache on and off in turns. Processor time is that of the loop's thread."""
    tables = bench.llm.core._scheduler.tables
    walls: dict[bool, list[float]] = {True: [], False: []}
    works: dict[bool, list[float]] = {True: [], False: []}
    for on in _turns(rounds):
        tables._caching = on
        work = time.thread_time()
        walls[on].append(bench.run(8, 256, 32))
        works[on].append(time.thread_time() - work)
    tables._caching = True
    ratios = [a / b - 1 for a, b in zip(walls[True], walls[False], strict=True)]
    wall = statistics.median(walls[False])
    more = statistics.median(works[True]) - statistics.median(works[False])
    figures = {
        "cache_cost_wall_percent": 100 * statistics.median(ratios),
        "cache_cost_wall_spread_percent": 100 * _standard_error(ratios),
        "cache_cost_cpu_percent": 100 * more / wall,
        "cache_cost_cpu_ms_of_2304_tokens": 1e3 * more,
    }
    for name, value in figures.items():
        print(f"{name} {value:.3f}")
    return figures


def _turns(rounds: int) -> Iterator[bool]:
    """on off, off on, on off, ..."""
    for n in range(rounds):
        yield n % 2 == 0
        yield n % 2 == 1


def _standard_error(values: list[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def draw(figures: Figures, file: Path) -> None:
    """Draws the figures on one page."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    page, axes = plt.subplots(2, 3, figsize=(14, 7.4))
    for column, (name, xlabel) in enumerate(
        {
            "context": "context of the one decode (tokens)",
            "batch": "decodes, 128 to 190 tokens of context each",
            "pool": "KV pool (MiB), 8 decodes",
        }.items()
    ):
        for row, (unit, ylabel) in enumerate(
            {"step_ms": "decode step (ms)", "host_us": "host's part of it (µs)"}.items()
        ):
            labels = [k.split("_")[1] for k in figures if k.startswith(f"{name}_")]
            xs = sorted({int(label) for label in labels})
            if row == 0 or column < 2:
                ys = [figures[f"{name}_{x}_{unit}"] for x in xs]
                axes[row][column].plot(xs, ys, "o-")
                axes[row][column].set(xlabel=xlabel, ylabel=ylabel, ylim=(0, 1.1 * max(ys)))
                axes[row][column].set_xscale("log", base=2)
                axes[row][column].set_xticks(xs, [str(x) for x in xs])
                axes[row][column].grid(alpha=0.3)
    hits = axes[1][2]
    keys = [f"hits{share * 100:.0f}" for share in HITS]
    found = [figures[f"{key}_found_percent"] for key in keys]
    hits.plot(found, [figures[f"{key}_ttft_ms"] for key in keys], "o-", label="TTFT (ms), left")
    hits.set(
        xlabel=f"prompt tokens found in the prefix cache (%), {PROMPT}-token prompts",
        ylabel="TTFT (ms)",
        ylim=(0, None),
    )
    hits.grid(alpha=0.3)
    right = hits.twinx()
    rates = [figures[f"{key}_requests_per_s"] for key in keys]
    right.plot(found, rates, "s--", color="tab:orange", label="requests/s, right")
    right.set(ylabel="requests/s", ylim=(0, None))
    lines = hits.get_lines() + right.get_lines()
    hits.legend(lines, [line.get_label() for line in lines], fontsize=8, loc="center left")
    wall, spread, cpu = (
        figures[f"cache_cost_{what}_percent"] for what in ("wall", "wall_spread", "cpu")
    )
    page.suptitle(
        "SmolLM2-135M, float32, on CPU. Prefix cache when nothing is found: "
        f"{wall:+.2f} ± {spread:.2f} % of the time, {cpu:+.2f} % by CPU time of the loop"
    )
    page.tight_layout()
    page.savefig(file, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("build/scaling"))
    parser.add_argument("--redraw", action="store_true", help="from the folder's scaling.json")
    args = parser.parse_args()
    file = args.folder / "scaling.json"
    if not args.redraw:
        quick = args.quick
        steps = 8 if quick else 20
        contexts = (128, 512) if quick else (128, 512, 1024, 2048, 4096)
        batches = (1, 8) if quick else (1, 2, 4, 8, 16, 32)
        pools = () if quick else (256, 4096)
        bench = Bench()
        figures = decodes(bench, "context", [(str(c), 1, c) for c in contexts], steps)
        figures |= decodes(bench, "batch", [(str(b), b, 128) for b in batches], steps)
        figures |= decodes(bench, "pool", [("1024", 8, 128)], steps)
        figures |= gain(bench, *((2, 1) if quick else (8, 3)))
        figures |= cost(bench, 2 if quick else 6)
        bench.close()
        for pool in pools:
            other = Bench(kv_cache_memory=pool * MIB)
            figures |= decodes(other, "pool", [(str(pool), 8, 128)], steps)
            other.close()
        figures = {name: float(f"{value:.4g}") for name, value in figures.items()}
        args.folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(figures, indent=1) + "\n")
    figures = json.loads(file.read_text())
    draw(figures, args.folder / "scaling.png")
    print_figures(figures)


if __name__ == "__main__":
    main()
