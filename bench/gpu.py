"""The Triton kernels on a GPU: right or wrong, and how fast against the machine's own limits; and
what the sampler costs a step (see bench.sampling).

    python -m bench.gpu

Checks each kernel against the reference, then times decode and prefill against two floors measured
in the same call (copy bandwidth, bf16 matmul rate), PyTorch's scaled_dot_product_attention on
contiguous keys and values, and JAX's own paged kernel, where installed. Prints one table; the last
line is one flat JSON object. Takes a few minutes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bench import sampling
from bench.paged_inputs import Shape, repeat
from pallas_kernels import paged_attention, triton_attention, write_kv

REPEATS = 20  # calls inside one dispatch, so that the host's part is small
SAMPLES = 5


def llama(*sequences: tuple[int, int], kv_dtype: Any = None) -> Shape:
    return Shape(sequences, 32, 8, 128, dtype=jnp.bfloat16, kv_dtype=kv_dtype)


DECODE = {
    "64x4096": llama(*repeat(64, 1, 4096)),
    "1x32768": llama((1, 32768)),
    "256x1024": llama(*repeat(256, 1, 1024)),
    "64x4096_e4m3": llama(*repeat(64, 1, 4096), kv_dtype=jnp.float8_e4m3fn),
    "64x4096_e5m2": llama(*repeat(64, 1, 4096), kv_dtype=jnp.float8_e5m2),
    "ragged_64": llama(*((1, 64 << (i % 9)) for i in range(64))),
}
PREFILL = {
    "1x8192": llama((8192, 8192)),
    "8x2048": llama(*repeat(8, 2048, 2048)),
    "chunk_512_of_8192": llama((512, 8192)),
}
MIXED = ((1, 640), (30, 300), (17, 17), (1, 1), (3, 257), (1, 5000), (129, 129))
CHECKS: dict[str, tuple[Shape, dict[str, Any]]] = {
    "bf16": (llama(*MIXED), {}),
    "fp16": (Shape(MIXED, 32, 8, 128, dtype=jnp.float16), {}),
    "fp32": (Shape(MIXED, 9, 3, 64), {}),
    "e4m3": (llama(*MIXED, kv_dtype=jnp.float8_e4m3fn), {"k_scale": 0.5, "v_scale": 2.0}),
    "e5m2": (llama(*MIXED, kv_dtype=jnp.float8_e5m2), {}),
    "mqa": (Shape(MIXED, 16, 1, 128, dtype=jnp.bfloat16), {}),
    "head_80": (Shape(MIXED, 8, 8, 80, dtype=jnp.bfloat16), {}),
    "head_256": (Shape(MIXED, 8, 4, 256, 128, dtype=jnp.bfloat16), {"softcap": 20.0}),
    "window_sinks": (Shape(MIXED, 64, 8, 64, 32, dtype=jnp.bfloat16), {"window": 128, "sinks": 1}),
}


def seconds(step: Callable[[Any], Any], x: Any, *args: Any) -> float:
    """Best time of one step(x, *args), REPEATS chained in a dispatch; step returns a new x."""

    @jax.jit
    def run(x: Any, *args: Any) -> Any:
        return lax.fori_loop(0, REPEATS, lambda _, x: step(x, *args), x)

    jax.block_until_ready(run(x, *args))
    samples = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        jax.block_until_ready(run(x, *args))
        samples.append(time.perf_counter() - start)
    return min(samples) / REPEATS


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of copying 1 GiB."""
    x = jnp.zeros(2**28, jnp.float32)
    # Adding 1 keeps XLA from dropping the copies.
    return 2 * x.nbytes / seconds(lambda x: x + 1, x)


def matmul_rate() -> float:
    """bf16 operations a second of 8,192 x 8,192 x 8,192."""
    size = 8192
    x = jnp.full((size, size), 1 / size, jnp.bfloat16)
    return 2 * size**3 / seconds(lambda x, w: x @ w, x, x)


def ours(shape: Shape, **options: Any) -> tuple[Callable[..., jax.Array], tuple[Any, ...]]:
    """A step that maps q to the attention's output, and its arguments."""

    def step(q: jax.Array, *args: Any) -> jax.Array:
        return triton_attention.paged_attention(
            q,
            *args,
            scale=shape.head_dim**-0.5,
            max_query_len=max(n for n, _ in shape.sequences),
            **(dict.fromkeys(("window", "softcap", "sinks", "k_scale", "v_scale")) | options),
        )

    q, *tables = shape.batch()
    return step, (q, *shape.pool(7), *tables)


def check(name: str) -> float:
    """Largest difference from the reference, in units of the largest output."""
    shape, options = CHECKS[name]
    sinks = jnp.linspace(-1, 1, shape.heads) if "sinks" in options else None
    options = options | {"sinks": sinks}
    step, args = ours(shape, **options)
    want = paged_attention(
        *args, scale=shape.head_dim**-0.5, implementation="reference", **options
    ).astype(jnp.float32)
    got = jax.jit(step)(*args).astype(jnp.float32)
    return float(jnp.max(jnp.abs(got - want)) / jnp.max(jnp.abs(want)))


def check_write() -> bool:
    """Whether the triton write equals XLA's scatter, bit for bit."""
    pools = llama((1, 4096)).pool(1)
    new = [x[:8, :, 0] for x in pools]
    slots = jnp.asarray([16, 33, -1, 700, 4000, 31, 2, 90], jnp.int32)
    a, b = (write_kv(*new, *pools, slots, implementation=i) for i in ("triton", "xla"))
    return all(bool((x == y).all()) for x, y in zip(a, b, strict=True))


def jax_paged(shape: Shape) -> float:
    """JAX's example kernel on the same batch: one query token a sequence."""
    from jax.experimental.pallas.ops.gpu import paged_attention as theirs

    q, tables, contexts, _ = shape.batch()
    k, v = (x.swapaxes(0, 1) for x in shape.pool(7))

    def step(q: jax.Array, *args: jax.Array) -> jax.Array:
        return theirs.paged_attention(q, *args).astype(q.dtype)

    return seconds(step, q * shape.head_dim**-0.5, k, v, tables, contexts)


def torch_sdpa(shape: Shape) -> float:
    """PyTorch's attention over contiguous keys and values of equal length."""
    import torch

    query, context = shape.sequences[0]
    count, kind = len(shape.sequences), {"device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn(count, shape.heads, query, shape.head_dim, **kind)
    k, v = (torch.randn(count, shape.kv_heads, context, shape.head_dim, **kind) for _ in range(2))
    attend = torch.nn.functional.scaled_dot_product_attention
    times = []
    for _ in range(SAMPLES + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(REPEATS):
            attend(q, k, v, is_causal=query > 1, enable_gqa=True)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / REPEATS)
    return min(times[1:])


def peer(measure: Callable[[Shape], float], shape: Shape) -> float | None:
    """A peer's seconds, or None where it isn't installed or refuses."""
    try:
        return measure(shape)
    except Exception as refused:  # whatever it is, the peer's trouble must not end our run
        print(f"  {measure.__name__}: {type(refused).__name__}: {str(refused)[:100]}")
        return None


def sampler(row_counts: tuple[int, ...], vocab: int) -> dict[str, float]:
    """Prints and returns the sampler's milliseconds a step."""
    figures = {}
    for rows in row_counts:
        measured = sampling.measure(rows, vocab, SAMPLES)
        print(f"sampler, {rows} x {vocab}, ms: {measured}", flush=True)
        figures |= {f"sampler_{name}_{rows}_ms": value for name, value in measured.items()}
    return figures


def main() -> int:
    if jax.default_backend() != "gpu":
        print("bench.gpu needs a CUDA device; this process has none")
        return 2
    started = time.perf_counter()
    device = jax.devices()[0].device_kind
    figures: dict[str, Any] = {"device": device, "jax": jax.__version__}
    print(f"{device}, jax {jax.__version__}")

    wrong = 0
    for name, (shape, _) in CHECKS.items():
        error = check(name)
        limit = 2e-5 if shape.dtype == jnp.float32 else 2e-2
        wrong += not error < limit
        figures[f"error_{name}"] = error
        print(f"check {name:14s} {error:.2e} {'ok' if error < limit else 'WRONG'}", flush=True)
    if not check_write():
        wrong += 1
        print("check write_kv       WRONG")

    bandwidth, rate = copy_bandwidth(), matmul_rate()
    figures |= {"copy_gb_s": round(bandwidth / 1e9, 1), "matmul_tflop_s": round(rate / 1e12, 1)}
    print(f"\ncopy {bandwidth / 1e9:.0f} GB/s, bf16 matmul {rate / 1e12:.0f} TFLOP/s")
    print(f"{'':24s}{'us':>9s}{'of floor':>10s}{'torch us':>10s}{'jax us':>10s}")
    for kind, cases in (("decode", DECODE), ("prefill", PREFILL)):
        for name, shape in cases.items():
            step, args = ours(shape)
            ours_s = seconds(step, *args)
            ideal = shape.kv_bytes / bandwidth if kind == "decode" else shape.flops / rate
            equal = len(set(shape.sequences)) == 1 and shape.kv_dtype is None
            peers: dict[str, float | None] = {"torch": None, "jax": None}
            if equal and shape.sequences[0][0] in (1, shape.sequences[0][1]):
                peers["torch"] = peer(torch_sdpa, shape)
            if kind == "decode" and shape.kv_dtype is None:
                peers["jax"] = peer(jax_paged, shape)
            key = f"{kind}_{name}"
            figures |= {f"{key}_us": round(ours_s * 1e6, 1), f"{key}_floor": ideal / ours_s}
            figures |= {f"{key}_{p}_us": s and round(s * 1e6, 1) for p, s in peers.items()}
            columns = "".join(f"{s * 1e6:10.1f}" if s else f"{'-':>10s}" for s in peers.values())
            print(f"{key:24s}{ours_s * 1e6:9.1f}{100 * ideal / ours_s:9.1f}%{columns}", flush=True)
    figures |= sampler((1, 32, 256), 128_256)
    gain = figures["decode_64x4096_us"] / figures["decode_64x4096_e4m3_us"]
    figures |= {"e4m3_gain": round(gain, 2), "seconds": round(time.perf_counter() - started, 1)}
    print(f"e4m3 decode is {gain:.2f} times bf16's speed; {figures['seconds']} s in all")
    print(
        json.dumps(
            {k: float(np.float32(v)) if isinstance(v, float) else v for k, v in figures.items()}
        )
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
