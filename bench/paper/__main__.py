"""The PagedAttention paper's claim (Kwon et al., 2023, section 6): our scheduler with its allocator
replaced by contiguous reservation and by the paper's three versions of Orca.

    python -m bench.paper [--quick] [--parts PART ...] [--results FILE]

memory, blocks and latency: OPT-13B with 12 GB of KV on an A100 in simulated time: the real
scheduler plans every step, and a roofline model says how long it takes. real: the same with the
demo model on this machine: a cost model is fitted to step times of the engine, and real runs are
compared with simulations of the same arrivals. samples and beams: blocks saved by sharing; the
beams are the demo model's. figures: drawn with matplotlib from the results file, to which every
part adds.

Limits: lengths are log-normal with the paper's means, and traces take minutes where the paper's
take an hour; the roofline model leaves out kernel launches and the host; a block size costs memory
only. The last line is one flat JSON object.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path

from bench.common.figures import print_figures
from bench.paper import results as found
from bench.paper.allocators import FASTER_TRANSFORMER, MAX, ORACLE, PAGED, POW2, SYSTEMS
from bench.paper.clock import make_arrivals, simulate, sweep
from bench.paper.costs import OPT_13B_A100, Cost
from scheduler import SchedulerConfig

SLOTS = 15_728  # of a token each: 12 GB of OPT-13B's KV, as in the paper's table 1
PAPER = SchedulerConfig(
    num_blocks=SLOTS // 16 + 1,
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    max_model_len=2048,
    enable_prefix_caching=False,
)
TRACES = ("sharegpt-like", "alpaca-like")
Rates = dict[str, list[float]]
RATES: Rates = {
    "sharegpt-like": [0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 3],
    "alpaca-like": [1, 2, 4, 6, 10, 15, 20, 25, 30, 40, 50, 60, 70, 80],
}
SLOW_RATES: Rates = {  # FasterTransformer's
    "sharegpt-like": [0.02, 0.05, 0.1, 0.2, 0.3, 0.5],
    "alpaca-like": [0.1, 0.2, 0.4, 0.7, 1, 1.5, 2],
}
SECONDS = {"sharegpt-like": 300.0, "alpaca-like": 100.0}
CPU_RATES: Rates = {
    "sharegpt-like": [0.1, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 3],
    "alpaca-like": [0.5, 1, 2, 4, 6, 8, 10, 12, 14, 16],
}
PRESSURE = {
    "sharegpt-like": 2.5,
    "alpaca-like": 90.0,
}  # requests/s at which requests queue with every allocator
BLOCK_RATES = {"sharegpt-like": 2.5, "alpaca-like": 70.0}
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
REAL_RATES = (1.0, 2.0)
WIDTHS = (2, 4, 6)
PARTS = ("memory", "blocks", "latency", "real", "samples", "beams", "figures")


def curves(
    results: found.Results,
    name: str,
    config: SchedulerConfig,
    cost: Cost,
    rates: Rates,
    quick: bool,
    scale: int = 1,
) -> None:
    """Latency against request rate, of all systems on both traces."""
    results[name], results[f"{name}_knees"] = {}, {}
    for trace in TRACES:
        seconds = 20.0 if quick else SECONDS[trace]
        points = {}
        for system in SYSTEMS:
            own = rates if system is not FASTER_TRANSFORMER else SLOW_RATES
            tried = own[trace][:: 4 if quick else 1]
            worst = 1.0 if scale == 1 else 2.0
            points[system.name] = sweep(config, system, trace, cost, tried, seconds, scale, worst)
            for rate, latency, batched in found.curve(points[system.name]):
                shown = f"{rate:6.2f} requests/s {1000 * latency:7.0f} ms/token {batched:6.1f} run"
                print(f"{name} {trace} {system.name:18} {shown}", flush=True)
        results[name][trace] = {system: found.curve(p) for system, p in points.items()}
        results[f"{name}_knees"][trace] = found.knees(points, PAGED.name)


def memory(results: found.Results, quick: bool) -> None:
    """How each system uses the KV memory while requests queue."""
    results["memory"] = {}
    for trace in TRACES:
        arrivals = make_arrivals(trace, PRESSURE[trace], 30 if quick else SECONDS[trace])
        shares = results["memory"][trace] = {}
        for system in (MAX, POW2, ORACLE, PAGED):
            outcome = simulate(PAPER, system, arrivals, OPT_13B_A100, to_the_end=False)
            shares[system.name] = asdict(outcome.usage) | {
                "wasted_of_held": outcome.usage.wasted_of_held,
                "batched_sequences": outcome.batched,
            }


def blocks(results: found.Results, quick: bool) -> None:
    results["blocks"] = {}
    for trace in TRACES:
        arrivals = make_arrivals(trace, BLOCK_RATES[trace], 30 if quick else SECONDS[trace] / 2)
        results["blocks"][trace] = {}
        for size in BLOCK_SIZES:
            config = replace(PAPER, num_blocks=SLOTS // size + 1, block_size=size)
            outcome = simulate(config, PAGED, arrivals, OPT_13B_A100)
            wasted = outcome.usage.wasted_of_held
            results["blocks"][trace][str(size)] = [outcome.latency, wasted]


def latency(results: found.Results, quick: bool) -> None:
    curves(results, "roofline", PAPER, OPT_13B_A100, RATES, quick)


def real(results: found.Results, quick: bool) -> None:
    from bench.paper.real import CONFIG, ROWS, SCALE, calibrate, drive, open_engine

    llm = open_engine()
    drive(llm, PAGED, make_arrivals("alpaca-like", 4, 1, SCALE))  # warm-up
    cost = calibrate(llm, ROWS[::3], 6) if quick else calibrate(llm)
    rates = {"per_context_us": 1e6 * cost.per_context, "per_pair_us": 1e6 * cost.per_pair}
    rates |= {f"step_{b.tokens}x{b.rows}_ms": 1e3 * s for b, s in cost.constants.items()}
    results["real"], steps = [], []
    for rate in REAL_RATES:
        arrivals = make_arrivals("sharegpt-like", rate, (6 if quick else 24) / rate, SCALE, seed=1)
        for system in (PAGED, MAX):
            run = drive(llm, system, arrivals)
            steps += run.steps
            simulated = simulate(CONFIG, system, arrivals, cost)
            results["real"].append(
                {
                    "system": system.name,
                    "rate": rate,
                    "latency": run.latency,
                    "simulated_latency": simulated.latency,
                    "tokens_s": run.tokens_s,
                    "simulated_tokens_s": simulated.tokens_s,
                }
            )
            print(results["real"][-1], flush=True)
    llm.core.close()
    median, total = cost.error(steps)
    results["fit"] = rates | {
        "fit_median_step_error_percent": 100 * median,
        "fit_sum_error_percent": 100 * total,
    }
    curves(results, "measured", CONFIG, cost, CPU_RATES, quick, SCALE)


def samples(results: found.Results, quick: bool) -> None:
    from bench.paper.sharing import parallel_saving

    results["parallel"] = {
        trace: {str(n): parallel_saving(trace, n, 20 if quick else 60) for n in WIDTHS}
        for trace in TRACES
    }


def beams(results: found.Results, quick: bool) -> None:
    from bench.paper.sharing import beam_saving
    from jaxserve import LLM

    llm = LLM("smollm2-135m", progress=False, enable_prefix_caching=False)
    counts = {"sharegpt-like": 0 if quick else 2, "alpaca-like": 1 if quick else 5}
    results["beams"] = {
        trace: {str(n): beam_saving(llm, trace, n, count) for n in WIDTHS}
        for trace, count in counts.items()
        if count
    }
    llm.core.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--results", type=Path, default=Path("build/paper/paper.json"))
    args = parser.parse_args()
    results = found.load(args.results)
    for part in (memory, blocks, latency, real, samples, beams):
        if part.__name__ in args.parts:
            part(results, args.quick)
            found.save(results, args.results)
    if "figures" in args.parts:
        from bench.paper.figures import draw

        draw(found.load(args.results), args.results.parent)
    figures = found.flat(found.load(args.results))
    for name, value in figures.items():
        print(f"{name:60} {value}")
    print_figures(figures)


if __name__ == "__main__":
    main()
