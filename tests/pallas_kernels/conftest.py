"""Random ragged batches. All cache memory that no token may see holds NaN."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import page_shape, paged_attention, triton_attention
from pallas_kernels.tuning import Blocks, Splits

# Block sizes for interpret mode: small enough that contexts of a few hundred tokens take several
# steps, tiles and parts.
SMALL_BLOCKS = {
    "decode_blocks": Blocks(rows=16, keys=32, num_warps=4, num_stages=1),
    "prefill_blocks": Blocks(rows=32, keys=32, num_warps=4, num_stages=1),
    "splits": Splits(extra=12, shortest=64),
}


@dataclass(frozen=True)
class Batch:
    q: jax.Array
    k_pages: jax.Array
    v_pages: jax.Array
    block_tables: jax.Array
    context_lens: jax.Array
    query_starts: jax.Array
    scale: float
    window: int | None
    softcap: float | None
    max_query_len: int | None
    arrays: dict[str, jax.Array | None]  # sinks, k_scale, v_scale

    def call(self, implementation: str, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        options = (self.scale, self.window, self.softcap, self.max_query_len)
        attend = compiled(implementation, *options)
        tables = (self.block_tables, self.context_lens, self.query_starts)
        return attend(q, k, v, *tables, **self.arrays)

    def run(self, implementation: str) -> np.ndarray:
        """implementation: one of the package's, or "interpret", the triton kernels on a CPU."""
        return np.asarray(self.call(implementation, self.q, self.k_pages, self.v_pages), np.float32)

    def rows(self, out: np.ndarray, sequence: int) -> np.ndarray:
        return out[int(self.query_starts[sequence]) : int(self.query_starts[sequence + 1])]


@functools.cache
def compiled(
    implementation: str,
    scale: float,
    window: int | None,
    softcap: float | None,
    max_query_len: int | None,
) -> Callable[..., jax.Array]:
    options = {"scale": scale, "window": window, "softcap": softcap}
    options["max_query_len"] = max_query_len
    if implementation == "interpret":
        attend = functools.partial(
            triton_attention.paged_attention,
            **(options | {"max_query_len": max_query_len or 2}),
            interpret=True,
            **SMALL_BLOCKS,
        )
    else:
        attend = functools.partial(paged_attention, **options, implementation=implementation)
    # Unoptimised code compiles in half the time. It is used where XLA compiles only test code.
    unoptimized = implementation in ("reference", "interpret")
    return jax.jit(
        attend, compiler_options={"xla_backend_optimization_level": 0} if unoptimized else None
    )


def build(
    *,
    seed: int,
    sequences: list[tuple[int, int]],
    heads: int = 6,
    kv_heads: int = 2,
    head_dim: int = 64,
    block_size: int = 16,
    dtype: Any = jnp.float32,
    kv_dtype: Any = None,
    padding: int = 0,
    total_tokens: int | None = None,
    total_sequences: int | None = None,
    num_blocks: int | None = None,
    width: int | None = None,
    key: int = 0,
    keys: list[int] | None = None,
    window: int | None = None,
    softcap: float | None = None,
    max_query_len: int | None = None,
    sinks: bool = False,
    k_scale: Any = None,
    v_scale: Any = None,
) -> Batch:
    """A batch of (query tokens, context tokens) pairs.

    Args:
        keys: each sequence's random numbers depend on its key and the seed; key, key + 1, ... by
            default.
        padding: number of padding tokens at the end, unless total_tokens is given.
    """
    keys = keys or [key + i for i in range(len(sequences))]
    used = [-(-context // block_size) for _, context in sequences]
    num_blocks = num_blocks or sum(used) + 3
    width = width or max(used) + 2
    rows = total_sequences or len(sequences)
    queries = sum(n for n, _ in sequences)
    tokens = total_tokens or queries + padding
    shape = page_shape(num_blocks, kv_heads, block_size, head_dim)
    k_pages, v_pages = (np.full(shape, np.nan, np.float32) for _ in range(2))
    layout = np.random.default_rng(seed)
    # The last page keeps its NaN, and unused table entries point at it.
    free = layout.permutation(np.arange(1, num_blocks - 1)).tolist()
    tables = np.full((rows, width), num_blocks - 1, np.int32)
    q = np.zeros((tokens, heads, head_dim), np.float32)
    starts, contexts = np.zeros(rows + 1, np.int32), np.zeros(rows, np.int32)
    starts[:] = queries
    first = 0
    for s, (count, context) in enumerate(sequences):
        rng = np.random.default_rng([seed, keys[s]])
        starts[s], contexts[s] = first, context
        q[first : first + count] = rng.standard_normal((count, heads, head_dim), np.float32)
        first += count
        k, v = (rng.standard_normal((kv_heads, context, head_dim), np.float32) for _ in range(2))
        # Positions before every query's window are seen by no query.
        visible = 0 if window is None else max(0, context - count - window + 1)
        for w in range(used[s]):
            page = tables[s, w] = free.pop()
            for position in range(w * block_size, min((w + 1) * block_size, context)):
                if position >= visible:
                    k_pages[page, :, position % block_size] = k[:, position]
                    v_pages[page, :, position % block_size] = v[:, position]
    draw = np.random.default_rng([seed, 999])
    return Batch(
        q=jnp.asarray(q, dtype),
        k_pages=jnp.asarray(k_pages, kv_dtype or dtype),
        v_pages=jnp.asarray(v_pages, kv_dtype or dtype),
        block_tables=jnp.asarray(tables),
        context_lens=jnp.asarray(contexts),
        query_starts=jnp.asarray(starts),
        scale=head_dim**-0.5,
        window=window,
        softcap=softcap,
        max_query_len=max_query_len,
        arrays={
            "sinks": jnp.asarray(draw.standard_normal(heads), jnp.float32) if sinks else None,
            "k_scale": None if k_scale is None else jnp.asarray(k_scale, jnp.float32),
            "v_scale": None if v_scale is None else jnp.asarray(v_scale, jnp.float32),
        },
    )


@pytest.fixture(autouse=True)
def _needs_a_gpu(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu") and jax.default_backend() != "gpu":
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., Batch]:
    return build
