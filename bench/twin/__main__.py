"""One scheduler, two runners: ours and plain PyTorch with the same model, step by step.

    python -m bench.twin [--quick] [--dtypes float32 bfloat16] [--device cpu] [--figure FILE]

The engine's scheduler plans decode steps, prompts, mixed steps and a ShareGPT-like trace, and its
runner packs them. Both runners replay the packed steps, each in its own process. A step's time is
from the host's arrays to the sampled ids on the host, without scheduling and overlap. Every token
that ours sampled must have PyTorch's largest logit, or one within 1e-3 of it.

JAXSERVE_TORCH_PYTHON names an interpreter that has torch, safetensors and NumPy; without it only
ours is measured. --dtypes are PyTorch's, each replayed eagerly, the first also with decode steps
compiled by torch.compile; --dtype is ours. With --cold, ours compiles with an empty cache, as
PyTorch always does. A replay that fails or exceeds --limit (7.5 minutes in all) is left out. The
exit status is 1 if the two disagree in float32. The last line is one flat JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bench.common.figures import print_figures
from bench.twin import ours
from bench.twin.cases import QUICK, Sizes

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 1e-3  # of a logit


def twin(
    folder: Path, dtype: str, mode: str, device: str, passes: int, limit_s: float
) -> dict[str, Any] | None:
    """What torch_runner prints, with an empty cache of compiled code; None if it fails or takes
    longer than the limit."""
    arguments = [folder, dtype, device, mode, passes]
    command = [os.environ["JAXSERVE_TORCH_PYTHON"], "-m", "bench.twin.torch_runner"]
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder / f"inductor-{dtype}")}
    try:
        done = subprocess.run(
            [*command, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            cwd=ROOT,
            env=os.environ | cache,
            timeout=max(limit_s, 1),
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"left out: {error}")
        return None
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


def twin_figures(printed: dict[str, Any], label: str, tokens: int) -> dict[str, Any]:
    """The flat figures of one replay."""
    figures: dict[str, Any] = {}
    first_calls = 0.0
    for name, case in printed["cases"].items():
        seconds = np.array(case["seconds"])
        timed = seconds[1:] if len(seconds) > 1 else seconds
        if len(seconds) > 1:
            first_calls += max(0.0, seconds[0].sum() - timed.sum(axis=1).mean())
        figures |= ours.case_figures(name, label, timed, tokens)
    cases = printed["cases"].values()
    return figures | {
        f"{label}_compile_s": round(first_calls, 1),
        f"{label}_start_s": round(printed["load_s"] + first_calls, 1),
        f"{label}_peak_mib": round(printed["peak_mib"]),
        f"{label}_sampled": sum(case["rows"] for case in cases),
        f"{label}_equal": sum(case["equal"] for case in cases),
        f"{label}_largest_gap": round(max(case["gap"] for case in cases), 6),
    }


def ratios(figures: dict[str, Any], label: str) -> dict[str, float]:
    """Our speed over PyTorch's, by case."""
    found = {}
    for name, value in figures.items():
        if name.endswith("_ours_ms"):
            peer = figures[name.replace("_ours_", f"_{label}_")]
            found[name.replace("_ours_ms", f"_over_{label}")] = round(peer / value, 2)
    found[f"trace_over_{label}"] = round(figures[f"trace_{label}_s"] / figures["trace_ours_s"], 2)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m", help="a Llama without biases")
    parser.add_argument("--dtype", help="ours; default: float32 on a CPU, bfloat16 on a GPU")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], help="PyTorch's")
    parser.add_argument("--device", default="cpu", help="PyTorch's: cpu or cuda")
    parser.add_argument(
        "--limit", type=float, default=450, help="seconds, after which replays are left out"
    )
    parser.add_argument("--cold", action="store_true", help="compile ours with an empty cache")
    parser.add_argument("--quick", action="store_true", help="few small cases")
    parser.add_argument("--figure", type=Path, help="write a PNG (needs matplotlib)")
    args = parser.parse_args()
    end = time.monotonic() + args.limit
    sizes = QUICK if args.quick else Sizes()
    dtype = args.dtype or ("float32" if jax.default_backend() == "cpu" else "bfloat16")
    figures: dict[str, Any] = {
        "model": args.model,
        "machine": f"{jax.devices()[0].device_kind}, {os.cpu_count()} CPU cores",
        "jax": jax.__version__,
    }
    agree = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found, tokens = ours.measure(args.model, dtype, folder, sizes, args.cold)
        figures |= {"ours_dtype": dtype} | found
        first, *others = args.dtypes
        runs = [(first, "eager"), (first, "compile"), *((other, "eager") for other in others)]
        if "JAXSERVE_TORCH_PYTHON" not in os.environ:
            print("JAXSERVE_TORCH_PYTHON isn't set: only ours is measured")
            runs = []
        for theirs, mode in runs:
            label = f"torch_{theirs}" + ("_compiled" if mode == "compile" else "")
            print(label, flush=True)
            printed = twin(folder, theirs, mode, args.device, sizes.passes, end - time.monotonic())
            if printed is None:
                continue
            figures |= {"torch": printed["torch"], "torch_threads": printed["threads"]}
            figures |= twin_figures(printed, label, tokens)
            figures |= ratios(figures, label)
            if dtype == theirs == "float32":
                agree &= figures[f"{label}_largest_gap"] <= TOLERANCE
    for key, value in figures.items():
        print(f"{key:45} {value}")
    if args.figure is not None and runs:
        from bench.twin.chart import draw

        draw(figures, args.figure)
    if not agree:
        print("the runners disagree")
    print_figures(figures)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
