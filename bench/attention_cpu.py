"""Times of the `xla` attention on a CPU, against reading the same keys and values once.

    python -m bench.attention_cpu

Every measurement of a kernel alternates with one of the floor, so that a busy machine slows both.
The last line is one flat JSON object.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from bench.paged_inputs import Shape, repeat
from pallas_kernels import page_shape, paged_attention, write_kv

LAYERS = 6  # distinct pools, so that no cache keeps one from call to call
ROUNDS = 15


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


def attend(pools, q, tables, contexts, starts, *, max_query_len):  # type: ignore[no-untyped-def]
    """All layers, each depending on the one before, as in a model."""
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
            implementation="cpu",
        )
    return q


def read(pools, *_):  # type: ignore[no-untyped-def]
    """Reads every pool once: a maximum over blocks is the fastest reader that XLA:CPU offers."""
    return [pages.reshape(len(pages), -1).max(axis=0) for pair in pools for pages in pair]


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """(wall, processor) seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(call())
    return time.perf_counter() - wall, time.process_time() - cpu


def alternate(*calls: Callable[[], object]) -> list[tuple[float, float]]:
    """Best wall and best processor seconds of each call, one after the other in turn."""
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


def main() -> None:
    figures: dict[str, float | str] = {"jax": jax.__version__}
    print(f"{'per layer':16s} {'ms':>8s} {'cpu ms':>8s} {'read ms':>8s} {'cpu ms':>8s}", end="")
    print(f" {'x read':>7s} {'x cpu':>6s} {'GFLOP/s':>8s}  compile s")
    for name, case in CASES.items():
        pools, batch = [case.pool(layer) for layer in range(LAYERS)], case.batch()
        start = time.perf_counter()
        longest = max(count for count, _ in case.sequences)
        attention = functools.partial(attend, max_query_len=longest)
        run = jax.jit(attention).lower(pools, *batch).compile()
        compile_s = time.perf_counter() - start
        floor = jax.jit(read)
        (wall, cpu), (read_wall, read_cpu) = alternate(
            lambda run=run, a=(pools, *batch): run(*a), lambda f=floor, p=pools: f(p)
        )
        ms = [1e3 * x / LAYERS for x in (wall, cpu, read_wall, read_cpu)]
        print(
            f"{name:16s} {ms[0]:8.3f} {ms[1]:8.3f} {ms[2]:8.3f} {ms[3]:8.3f} "
            f"{wall / read_wall:7.2f} {cpu / read_cpu:6.2f} "
            f"{case.flops * LAYERS / wall / 1e9:8.1f}  {compile_s:.1f}",
            flush=True,
        )
        figures[f"{name}_ms"] = round(ms[0], 4)
        figures[f"{name}_x_read"] = round(wall / read_wall, 3)
        figures[f"{name}_x_read_cpu"] = round(cpu / read_cpu, 3)
    for tokens in (32, 512):
        figures[f"write_kv_{tokens}_ms"] = round(1e3 * write_seconds(tokens), 4)
        print(f"write_kv {tokens:4d} tokens {figures[f'write_kv_{tokens}_ms']} ms")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
