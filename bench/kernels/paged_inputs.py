"""Inputs of paged attention: random pools, and block tables in random order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import page_shape


@dataclass(frozen=True)
class Shape:
    """A batch of (query tokens, context tokens) pairs, and the model's sizes.

    Args:
        tokens: T; what the sequences don't fill is padding. None is as many as they have.
        width: W of the block tables; None is as much as the longest context needs.
    """

    sequences: tuple[tuple[int, int], ...]
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int = 16
    dtype: Any = jnp.float32
    kv_dtype: Any = None
    tokens: int | None = None
    width: int | None = None

    @property
    def kv_bytes(self) -> int:
        itemsize = jnp.dtype(self.kv_dtype or self.dtype).itemsize
        return 2 * sum(c for _, c in self.sequences) * self.kv_heads * self.head_dim * itemsize

    @property
    def flops(self) -> int:
        """Operations of the two matrix products, counting only pairs that the causal mask keeps."""
        pairs = sum(n * c - n * (n - 1) // 2 for n, c in self.sequences)
        return 4 * pairs * self.heads * self.head_dim

    def pool(self, seed: int) -> tuple[jax.Array, jax.Array]:
        blocks = 1 + sum(-(-c // self.block_size) for _, c in self.sequences)
        shape = page_shape(blocks, self.kv_heads, self.block_size, self.head_dim)
        keys = jax.random.split(jax.random.key(seed))
        k, v = (jax.random.normal(key, shape).astype(self.kv_dtype or self.dtype) for key in keys)
        return k, v

    def batch(self, seed: int = 0) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """(q, block_tables, context_lens, query_starts)."""
        used = [-(-c // self.block_size) for _, c in self.sequences]
        rows, count = len(used), sum(n for n, _ in self.sequences)
        tables = np.zeros((rows, self.width or max(used)), np.int32)
        free = np.random.default_rng(seed).permutation(np.arange(1, 1 + sum(used)))
        for s, pages in enumerate(used):
            tables[s, :pages], free = free[:pages], free[pages:]
        q = jax.random.normal(
            jax.random.key(seed + 1), (self.tokens or count, self.heads, self.head_dim)
        )
        return (
            q.astype(self.dtype),
            jnp.asarray(tables),
            jnp.asarray([c for _, c in self.sequences], jnp.int32),
            jnp.asarray(np.cumsum([0] + [n for n, _ in self.sequences]), jnp.int32),
        )


def repeat(count: int, query: int, context: int) -> tuple[tuple[int, int], ...]:
    """`count` sequences with the same lengths."""
    return ((query, context),) * count
