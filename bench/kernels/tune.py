"""Times block sizes of the Triton kernels on a GPU, and prints entries for the table of
pallas_kernels/tuning.py:

    python -m bench.kernels.tune [head sizes]

The last line is one flat JSON object with the fastest time of each kind of batch.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable

import jax
import jax.numpy as jnp

from bench.common.figures import Figures, print_figures
from bench.kernels.device_limits import Timing
from bench.kernels.gpu_attention import ours
from bench.kernels.paged_inputs import Shape, repeat
from pallas_kernels.tuning import Blocks


def candidates(rows: Iterable[int], keys: Iterable[int], warps: Iterable[int]) -> list[Blocks]:
    return [Blocks(*c) for c in itertools.product(rows, keys, warps, (1, 3, 5, 7))]


def sweep(kind: str, shape: Shape, blocks: list[Blocks]) -> dict[str, float]:
    """Prints the three fastest block sizes and returns the fastest time. A size that does not
    compile is left out."""
    times: dict[Blocks, float] = {}
    for block in blocks:
        step, args = ours(shape, **{f"{kind}_blocks": block})
        try:
            times[block] = Timing().seconds(step, *args)
        except Exception as refused:
            print(f"  {block}: {type(refused).__name__}", flush=True)
    stored = jnp.dtype(shape.kv_dtype or shape.dtype).name
    for block in sorted(times, key=times.__getitem__)[:3]:
        us = times[block] * 1e6
        print(f"{kind} {shape.head_dim}: {block},  # {stored}, {us:.1f} us", flush=True)
    if not times:
        return {}
    return {f"{kind}_{shape.head_dim}_{stored}_us": round(min(times.values()) * 1e6, 1)}


def main() -> int:
    if jax.default_backend() != "gpu":
        print("bench.kernels.tune needs a CUDA device; this process has none")
        return 2
    figures: Figures = {}
    for head_dim in map(int, sys.argv[1:] or (64, 128, 256)):
        kv_heads = 1024 // head_dim
        for kv_dtype in (jnp.bfloat16, jnp.float8_e4m3fn):
            model = {"heads": 4 * kv_heads, "kv_heads": kv_heads, "head_dim": head_dim}
            types = {"dtype": jnp.bfloat16, "kv_dtype": kv_dtype}
            decode = Shape(repeat(64, 1, 4096), **model, **types)
            figures |= sweep("decode", decode, candidates((16,), (32, 64, 128), (2, 4, 8)))
            prefill = Shape(repeat(4, 2048, 2048), **model, **types)
            figures |= sweep("prefill", prefill, candidates((64, 128), (32, 64, 128), (4, 8)))
    print_figures(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
