"""Paged attention on a CPU by `cpu_kernels`, for float32 pools."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def supports(k_pages: jax.Array, v_pages: jax.Array) -> bool:
    """Whether this implementation can read these pools; `xla` can read any."""
    aligned = k_pages.shape[2] % 16 == 0 and k_pages.shape[3] % 16 == 0
    return aligned and k_pages.dtype == v_pages.dtype == jnp.float32


def paged_attention(
    q: jax.Array,  # [T, H, D]
    k_pages: jax.Array,  # [B, K, P, D]
    v_pages: jax.Array,  # [B, K, P, D]
    block_tables: jax.Array,  # [S, W]
    context_lens: jax.Array,  # [S]
    query_starts: jax.Array,  # [S + 1]
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: jax.Array | None,
    k_scale: jax.Array | float | None,
    v_scale: jax.Array | float | None,
    max_query_len: int,
) -> jax.Array:  # [T, H, D]
    import cpu_kernels  # only here, because the import compiles code and starts threads

    groups = (k_pages.shape[1], q.shape[1] // k_pages.shape[1])
    factor = scale if k_scale is None else scale * jnp.asarray(k_scale, jnp.float32)
    query = q.astype(jnp.float32).reshape(len(q), *groups, -1)
    query *= jnp.broadcast_to(factor, groups[:1])[:, None, None]
    if sinks is not None:
        sinks = sinks.astype(jnp.float32).reshape(groups)
    out = cpu_kernels.attention(
        query,
        k_pages,
        v_pages,
        block_tables,
        context_lens,
        query_starts,
        window=window,
        softcap=softcap,
        sinks=sinks,
    )
    if v_scale is not None:
        out *= jnp.broadcast_to(jnp.asarray(v_scale, jnp.float32), groups[:1])[:, None, None]
    return out.reshape(q.shape).astype(q.dtype)
