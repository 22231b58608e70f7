"""All that needs a GPU, in one call of under 8 minutes: whether the Triton kernels are right and
how fast they are, whole steps of Llama 3.1 8B through the engine, and the time of the sampler.

    python -m bench.kernels.gpu [--parts kernels model sampler] [--limit 450] [--dry-run]

The device's copy bandwidth and bf16 matmul rate are measured in the same call; they set the least
time that a kernel or a step can take. A part that fails is reported, and the others still run; one
that would begin after --limit seconds is left out. The last line is always one flat JSON object.
--dry-run runs the same code with small sizes on any device, with the kernels interpreted.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import jax

from bench.common.figures import print_figures
from bench.engine import gpu_steps
from bench.kernels import gpu_attention
from bench.kernels import sampler as sampler_cost
from jaxserve.config import EngineConfig
from jaxserve.engine.startup.device_info import prepare_gpu

PARTS = ("kernels", "model", "sampler")


def sampler(row_counts: tuple[int, ...], vocab: int, repeats: int) -> dict[str, float]:
    """Prints and returns the sampler's milliseconds a step."""
    figures = {}
    for rows in row_counts:
        measured = sampler_cost.measure(rows, vocab, repeats)
        print(f"sampler, {rows} x {vocab}, ms: {measured}", flush=True)
        figures |= {f"sampler_{name}_{rows}_ms": value for name, value in measured.items()}
    return figures


def run(parts: list[str], limit: float, dry_run: bool) -> int:
    """Runs the parts; the exit status, 1 if a result was wrong or a part failed."""
    started = time.perf_counter()
    kernels = gpu_attention.DRY if dry_run else gpu_attention.FULL
    load = gpu_steps.DRY if dry_run else gpu_steps.FULL
    device = jax.devices()[0].device_kind
    figures: dict[str, Any] = {"device": device, "jax": jax.__version__}
    bandwidth, rate = kernels.timing.copy_bandwidth(), kernels.timing.matmul_rate()
    figures |= {"copy_gb_s": round(bandwidth / 1e9, 1), "matmul_tflop_s": round(rate / 1e12, 1)}
    print(f"{device}, jax {jax.__version__}")
    print(f"copy {bandwidth / 1e9:.0f} GB/s, bf16 matmul {rate / 1e12:.0f} TFLOP/s\n")

    def check() -> dict[str, Any]:
        errors, wrong = kernels.check_all()
        return errors | {"wrong_kernels": wrong}

    rows, vocab = ((1, 4), 512) if dry_run else ((1, 32, 256), 128_256)
    work: dict[str, list[Callable[[], dict[str, Any]]]] = {
        "kernels": [check, lambda: kernels.measure(bandwidth, rate)],
        "model": [lambda: gpu_steps.ModelBench(load).measure(bandwidth, rate)],
        "sampler": [lambda: sampler(rows, vocab, kernels.timing.samples)],
    }
    failures = []
    for part in parts:
        for one in work[part]:
            if time.perf_counter() - started > limit:
                failures.append(f"{part}: no time left")
                continue
            try:
                figures |= one()
            except Exception as error:  # the figures of the other parts must still be printed
                traceback.print_exc()
                failures.append(f"{part}: {type(error).__name__}")
        figures[f"{part}_done_s"] = round(time.perf_counter() - started, 1)
    figures |= {"failures": "; ".join(failures)}
    figures["duration_s"] = round(time.perf_counter() - started, 1)
    print_figures(figures)
    return bool(failures or figures.get("wrong_kernels"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--limit", type=float, default=450.0)
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    prepare_gpu(EngineConfig().gpu_memory_utilization)
    if jax.default_backend() != "gpu" and not args.dry_run:
        print("bench.kernels.gpu needs a CUDA device; this process has none")
        return 2
    return run(args.parts, args.limit, args.dry_run)


if __name__ == "__main__":
    sys.exit(main())
