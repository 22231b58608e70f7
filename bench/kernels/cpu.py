"""The CPU kernels beside XLA's code, and beside one read of their inputs:

    python -m bench.kernels.cpu

Attention of one layer beside XLA's, and beside a read of the same keys and values; the products of
one layer's MLP, with its weights packed as the engine packs them, beside XLA's, and beside a read
of its weights. The measurements of a case alternate, so that other work on the machine slows all of
them. The last line is one flat JSON object.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import cpu_kernels
from bench.common.figures import print_figures
from bench.kernels.paged_inputs import Shape, repeat
from pallas_kernels import page_shape, paged_attention, write_kv

LAYERS = 6  # each with its own pool, so that no processor cache still holds one from call to call
ROUNDS = 15
HIDDEN, INNER, PRODUCT_LAYERS = 576, 1536, 20  # SmolLM2's MLP
ROWS = (1, 2, 8, 16, 32, 64, 256, 512)


def smollm2(tokens: int, *sequences: tuple[int, int]) -> Shape:
    return Shape(sequences, heads=9, kv_heads=3, head_dim=64, tokens=tokens, width=512)


CASES = {
    "decode_32x512": smollm2(32, *repeat(32, 1, 512)),
    "decode_32x128": smollm2(32, *repeat(32, 1, 128)),
    "decode_8x512": smollm2(8, *repeat(8, 1, 512)),
    "decode_1x4096": smollm2(2, (1, 4096)),
    "decode_ragged": smollm2(32, *((1, 16 << (i % 9)) for i in range(32))),
    "prefill_1024": smollm2(1024, (1024, 1024)),
    "mixed_32": smollm2(256, *repeat(31, 1, 512), (225, 700)),
}


def attend(  # type: ignore[no-untyped-def]
    pools, q, tables, contexts, starts, *, max_query_len, implementation
):
    """Attention of all layers, each depending on the one before, as in a model."""
    for k_pages, v_pages in pools:
        q = paged_attention(
            q,
            k_pages,
            v_pages,
            tables,
            contexts,
            starts,
            scale=q.shape[-1] ** -0.5,
            max_query_len=max_query_len,
            implementation=implementation,
        )
    return q


def multiply(product, x, weights):  # type: ignore[no-untyped-def]
    """The MLPs of all layers; product(x, w, O) has O outputs."""
    for gate_up, down in weights:
        gate, up = jnp.split(product(x, gate_up, 2 * INNER), 2, axis=-1)
        x = x + product(jax.nn.silu(gate) * up, down, HIDDEN)
    return x


def xla_product(x: jax.Array, w: jax.Array, outputs: int) -> jax.Array:
    return x @ w.T


def packed_product(x: jax.Array, w: cpu_kernels.Columns, outputs: int) -> jax.Array:
    return cpu_kernels.packed_linear(x, w)


def read(pairs):  # type: ignore[no-untyped-def]
    """Reads every array once: a maximum over rows reads fastest of what XLA:CPU compiles."""
    return [array.reshape(len(array), -1).max(axis=0) for pair in pairs for array in pair]


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """(wall, processor) seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(call())
    return time.perf_counter() - wall, time.process_time() - cpu


def alternate(*pairs: tuple[Callable[..., object], tuple[Any, ...]]) -> list[tuple[float, float]]:
    """Least wall and least processor seconds of each function with its arguments. The functions
    are called in turn, ROUNDS times."""
    calls = [functools.partial(function, *arguments) for function, arguments in pairs]
    for call in calls:
        jax.block_until_ready(call())
    rounds = np.asarray([[timed(call) for call in calls] for _ in range(ROUNDS)])
    return [(float(w), float(c)) for w, c in rounds.min(axis=0)]


def write_seconds(tokens: int) -> float:
    """Wall seconds of one layer's write_kv of so many tokens, pools donated."""
    shape = page_shape(2048, 3, 16, 64)
    pools = (jnp.zeros(shape), jnp.zeros(shape))
    x = jnp.ones((tokens, 3, 64))
    slots = jnp.arange(16, 16 + tokens, dtype=jnp.int32)
    write = jax.jit(write_kv, donate_argnums=(2, 3))
    best = float("inf")
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        pools = jax.block_until_ready(write(x, x, *pools, slots))
        best = min(best, time.perf_counter() - start)
    return best


def attention_figures() -> dict[str, float]:
    figures: dict[str, float] = {}
    one_read = jax.jit(read)
    print(
        f"{'attention, per layer':20s} {'ms':>8s} {'xla ms':>8s} {'read ms':>8s} {'x read':>7s}",
        end="",
    )
    print(f" {'GFLOP/s':>8s}")
    for name, case in CASES.items():
        pools, batch = [case.pool(layer) for layer in range(LAYERS)], case.batch()
        longest = max(count for count, _ in case.sequences)
        ours, xla = (
            jax.jit(functools.partial(attend, max_query_len=longest, implementation=which))
            for which in ("cpu", "xla")
        )
        arguments = (pools, *batch)
        (wall, cpu), (xla_wall, _), (read_wall, read_cpu) = alternate(
            (ours, arguments), (xla, arguments), (one_read, (pools,))
        )
        ms = [1e3 * x / LAYERS for x in (wall, xla_wall, read_wall)]
        flops = case.flops * LAYERS / wall / 1e9
        row = f"{name:20s} {ms[0]:8.3f} {ms[1]:8.3f} {ms[2]:8.3f} {wall / read_wall:7.2f}"
        print(f"{row} {flops:8.1f}", flush=True)
        figures[f"{name}_ms"] = round(ms[0], 4)
        figures[f"{name}_x_read"] = round(wall / read_wall, 3)
        figures[f"{name}_x_read_cpu"] = round(cpu / read_cpu, 3)
        figures[f"{name}_xla_ratio"] = round(xla_wall / wall, 3)
    return figures


def product_figures() -> dict[str, float]:
    figures: dict[str, float] = {}
    rng = np.random.default_rng(0)
    shapes = (2 * INNER, HIDDEN), (HIDDEN, INNER)
    weights = [
        tuple(jnp.asarray(rng.standard_normal(shape, np.float32) / 64) for shape in shapes)
        for _ in range(PRODUCT_LAYERS)
    ]
    packed = [tuple(map(cpu_kernels.pack, pair)) for pair in weights]
    one_read = jax.jit(read)
    print(f"{'MLP, per layer':20s} {'ms':>8s} {'xla ms':>8s} {'read ms':>8s} {'GFLOP/s':>8s}")
    for rows in ROWS:
        x = jnp.asarray(rng.standard_normal((rows, HIDDEN), np.float32))
        ours, xla = (
            jax.jit(functools.partial(multiply, product))
            for product in (packed_product, xla_product)
        )
        (wall, _), (xla_wall, _), (read_wall, _) = alternate(
            (ours, (x, packed)), (xla, (x, weights)), (one_read, (weights,))
        )
        ms = [1e3 * seconds / PRODUCT_LAYERS for seconds in (wall, xla_wall, read_wall)]
        flops = 6 * rows * HIDDEN * INNER * PRODUCT_LAYERS / wall / 1e9
        row = f"{rows:4d} rows            {ms[0]:8.3f} {ms[1]:8.3f} {ms[2]:8.3f} {flops:8.1f}"
        print(row, flush=True)
        figures[f"mlp_{rows}_ms"] = round(ms[0], 4)
        figures[f"mlp_{rows}_x_read"] = round(wall / read_wall, 3)
        figures[f"mlp_{rows}_gflop_s"] = round(flops, 1)
        figures[f"mlp_{rows}_xla_ratio"] = round(xla_wall / wall, 3)
    return figures


def main() -> None:
    figures: dict[str, float | str] = {"jax": jax.__version__}
    figures |= attention_figures() | product_figures()
    for tokens in (32, 512):
        figures[f"write_kv_{tokens}_ms"] = round(1e3 * write_seconds(tokens), 4)
        print(f"write_kv {tokens:4d} tokens {figures[f'write_kv_{tokens}_ms']} ms")
    print_figures(figures)


if __name__ == "__main__":
    main()
