"""The definition of paged attention, for tests: token by token, dense, in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp


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
    num_tokens, heads, _ = q.shape
    _, kv_heads, block_size, head_dim = k_pages.shape
    context = block_tables.shape[1] * block_size
    k_scale = jnp.broadcast_to(jnp.asarray(1.0 if k_scale is None else k_scale), (kv_heads,))
    v_scale = jnp.broadcast_to(jnp.asarray(1.0 if v_scale is None else v_scale), (kv_heads,))

    def attend(token: jax.Array) -> jax.Array:
        s = jnp.sum(query_starts[1:] <= token)
        position = context_lens[s] - (query_starts[s + 1] - token)
        key_position = jnp.arange(context)
        seen = key_position <= position
        if window is not None:
            seen &= key_position > position - window

        def gather(pages: jax.Array, factor: jax.Array) -> jax.Array:  # [H, context, D]
            x = pages[block_tables[s]].astype(jnp.float32)  # [W, K, P, D]
            x = x.swapaxes(0, 1).reshape(kv_heads, context, head_dim) * factor[:, None, None]
            x = jnp.where(seen[None, :, None], x, 0.0)
            return jnp.repeat(x, heads // kv_heads, axis=0)

        query = q[token].astype(jnp.float32)  # [H, D]
        scores = scale * jnp.sum(query[:, None] * gather(k_pages, k_scale), axis=-1)
        if softcap is not None:
            scores = softcap * jnp.tanh(scores / softcap)
        scores = jnp.where(seen, scores, -jnp.inf)  # [H, context]
        if sinks is not None:
            scores = jnp.concatenate([scores, sinks.astype(jnp.float32)[:, None]], axis=1)
        weights = jax.nn.softmax(scores, axis=-1)[:, :context]
        return jnp.sum(weights[..., None] * gather(v_pages, v_scale), axis=1)

    tokens = jnp.arange(num_tokens, dtype=jnp.int32)
    out = jax.lax.map(attend, tokens)
    return jnp.where((tokens < query_starts[-1])[:, None, None], out, 0.0).astype(q.dtype)
