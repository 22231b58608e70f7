"""Times of the `xla` attention on a CPU, against reading the same keys and values once.

    python -m bench.attention_cpu

Every measurement of a kernel alternates with one of the floor, so that a busy machine slows both.
The last line is one flat JSON object.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import page_shape, paged_attention, write_kv

LAYERS = 6  # distinct pools, so that no cache keeps one from call to call
HEADS, KV_HEADS, HEAD_DIM, BLOCK, WIDTH = 9, 3, 64, 16, 512  # SmolLM2-135M
ROUNDS = 15


@dataclass(frozen=True)
class Case:
    """A batch of (query tokens, context) pairs, padded to `tokens` rows."""

    name: str
    sequences: tuple[tuple[int, int], ...]
    tokens: int

    @property
    def kv_bytes(self) -> int:
        return sum(c for _, c in self.sequences) * KV_HEADS * HEAD_DIM * 4 * 2

    @property
    def flops(self) -> int:
        """Of the two matrix products, counting only pairs that causality lets through."""
        pairs = sum(n * c - n * (n - 1) // 2 for n, c in self.sequences)
        return pairs * HEADS * HEAD_DIM * 4


CASES = (
    Case("decode_32x512", ((1, 512),) * 32, 32),
    Case("decode_32x128", ((1, 128),) * 32, 32),
    Case("decode_8x512", ((1, 512),) * 8, 8),
    Case("decode_1x4096", ((1, 4096),), 2),
    Case("decode_ragged", tuple((1, 16 << (i % 9)) for i in range(32)), 32),
    Case("prefill_1024", ((1024, 1024),), 1024),
    Case("mixed_32", ((1, 512),) * 31 + ((225, 700),), 256),
)


def inputs(case: Case) -> tuple[list[tuple[jax.Array, jax.Array]], tuple[jax.Array, ...]]:
    """Pools, and (q, block_tables, context_lens, query_starts)."""
    rng = np.random.default_rng(0)
    used = [-(-context // BLOCK) for _, context in case.sequences]
    blocks = 1 + sum(used)
    shape = page_shape(blocks, KV_HEADS, BLOCK, HEAD_DIM)
    pools = [
        tuple(jnp.asarray(rng.standard_normal(shape, np.float32)) for _ in range(2))
        for _ in range(LAYERS)
    ]
    rows = max(2, len(case.sequences))
    tables, contexts = np.zeros((rows, WIDTH), np.int32), np.zeros(rows, np.int32)
    starts = np.full(rows + 1, sum(n for n, _ in case.sequences), np.int32)
    free, first = rng.permutation(np.arange(1, blocks)), 0
    for s, (count, context) in enumerate(case.sequences):
        tables[s, : used[s]], free = free[: used[s]], free[used[s] :]
        contexts[s], starts[s], first = context, first, first + count
    q = rng.standard_normal((case.tokens, HEADS, HEAD_DIM), np.float32)
    return pools, tuple(jnp.asarray(x) for x in (q, tables, contexts, starts))  # type: ignore[return-value]


def attend(pools, q, tables, contexts, starts):  # type: ignore[no-untyped-def]
    """All layers, each depending on the one before, as in a model."""
    for k_pages, v_pages in pools:
        q = paged_attention(
            q,
            k_pages,
            v_pages,
            tables,
            contexts,
            starts,
            scale=HEAD_DIM**-0.5,
            implementation="xla",
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
    shape = page_shape(2048, KV_HEADS, BLOCK, HEAD_DIM)
    pools = (jnp.zeros(shape), jnp.zeros(shape))
    x = jnp.ones((tokens, KV_HEADS, HEAD_DIM))
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
    for case in CASES:
        pools, batch = inputs(case)
        start = time.perf_counter()
        run = jax.jit(attend).lower(pools, *batch).compile()
        compile_s = time.perf_counter() - start
        floor = jax.jit(read)
        (wall, cpu), (read_wall, read_cpu) = alternate(
            lambda run=run, a=(pools, *batch): run(*a), lambda f=floor, p=pools: f(p)
        )
        ms = [1e3 * x / LAYERS for x in (wall, cpu, read_wall, read_cpu)]
        print(
            f"{case.name:16s} {ms[0]:8.3f} {ms[1]:8.3f} {ms[2]:8.3f} {ms[3]:8.3f} "
            f"{wall / read_wall:7.2f} {cpu / read_cpu:6.2f} "
            f"{case.flops * LAYERS / wall / 1e9:8.1f}  {compile_s:.1f}",
            flush=True,
        )
        figures[f"{case.name}_ms"] = round(ms[0], 4)
        figures[f"{case.name}_x_read"] = round(wall / read_wall, 3)
        figures[f"{case.name}_x_read_cpu"] = round(cpu / read_cpu, 3)
    for tokens in (32, 512):
        figures[f"write_kv_{tokens}_ms"] = round(1e3 * write_seconds(tokens), 4)
        print(f"write_kv {tokens:4d} tokens {figures[f'write_kv_{tokens}_ms']} ms")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
