"""The public functions: they check the arguments and choose an implementation.

A layer's KV pool is one array for keys and one for values, both `[B, K, P, D]`: B blocks (pages) of
P tokens each. Block 0 is the null block, which padding may write to. Callers may rely on axis 0
being the block; the order of the other axes is known to `page_shape` alone. Every layer has a pair
of arrays of its own, because slicing a layer out of a stacked array copies it.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from pallas_kernels import cpu, reference, triton_attention, triton_cache, xla

Implementation = Literal["reference", "xla", "cpu", "triton"]

_ATTENTION = {
    "reference": reference.paged_attention,
    "xla": xla.paged_attention,
    "cpu": cpu.paged_attention,
    "triton": triton_attention.paged_attention,
}
_WRITE = {
    "reference": xla.write_kv,
    "xla": xla.write_kv,
    "cpu": xla.write_kv,
    "triton": triton_cache.write_kv,
}


def page_shape(
    num_blocks: int, num_kv_heads: int, block_size: int, head_dim: int
) -> tuple[int, int, int, int]:
    """The shape of a layer's key pool, and of its value pool; allocate both with zeros.

    The kernels mask NaN in unwritten memory, but the null block must be finite.
    """
    return (num_blocks, num_kv_heads, block_size, head_dim)


def paged_attention(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    block_tables: jax.Array,
    context_lens: jax.Array,
    query_starts: jax.Array,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: jax.Array | None = None,
    k_scale: jax.Array | float | None = None,
    v_scale: jax.Array | float | None = None,
    max_query_len: int | None = None,
    implementation: Implementation | None = None,
) -> jax.Array:
    """Causal attention of a ragged batch over paged keys and values.

    Sequence s owns the query tokens query_starts[s] : query_starts[s + 1]. The last of them has
    position context_lens[s] - 1: the context includes the step's own tokens, which `write_kv` has
    stored already. A batch may hold decodes (sequences with one query token), prefill chunks, or
    both. A padding sequence has no query token and context length 0. Padding tokens (from
    query_starts[S] on) give zeros and cost next to nothing.

    A token's result depends on its own sequence alone, bit for bit, for given T, S and W. What the
    pool holds outside of the sequence's context (in later slots of the last page, in other pages,
    at positions before the window) never affects a result, even if it is NaN.

    Args:
        q: [T, H, D] float32, bfloat16 or float16, with rotary embedding applied.
        k_pages: [B, K, P, D], of q's type, float8_e4m3fn or float8_e5m2. H is a multiple of K;
            query head h reads kv head h // (H // K).
        v_pages: same shape and type as k_pages.
        block_tables: [S, W] int32; entry w of row s is the page of positions w * P and on.
            Entries past the context may hold anything.
        context_lens: [S] int32, tokens, at most W * P.
        query_starts: [S + 1] int32, ascending from 0.
        scale: factor of q . k before softcap and softmax, usually D ** -0.5.
        window: a token sees the last `window` positions, its own included; None sees all.
        softcap: scores become softcap * tanh(score / softcap).
        sinks: [H] float32, an additional logit per head in the softmax, with no value (gpt-oss).
        k_scale: factor of the stored keys, a scalar or [K] float32; None means 1.
        v_scale: factor of the stored values, likewise.
        max_query_len: upper bound of a sequence's query tokens; T by default. 1 (only decodes)
            leaves the prefill code out of the program.
        implementation: "reference" (the definition, in float32), "xla" (any device), "cpu"
            (`cpu_kernels` for float32 pools, "xla" for others) or "triton" (NVIDIA GPUs from sm_80
            on). None chooses by JAX's default backend.

    Returns:
        [T, H, D], of q's type.

    Raises:
        ValueError: shapes that do not fit together, or an unknown implementation.
    """
    _check(q, k_pages, v_pages, block_tables, context_lens, query_starts, sinks)
    chosen = _choose(implementation)
    if chosen == "cpu" and not cpu.supports(k_pages, v_pages):
        chosen = "xla"
    return _ATTENTION[chosen](
        q,
        k_pages,
        v_pages,
        block_tables,
        context_lens,
        query_starts,
        scale=scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        k_scale=k_scale,
        v_scale=v_scale,
        max_query_len=max_query_len or q.shape[0],
    )


def write_kv(
    k: jax.Array,
    v: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    slots: jax.Array,
    *,
    k_scale: jax.Array | float | None = None,
    v_scale: jax.Array | float | None = None,
    implementation: Implementation | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Stores new keys and values in the pool, in place if the pool is donated to the jit.

    Args:
        k: [T, K, D] keys, with rotary embedding applied.
        v: [T, K, D] values.
        k_pages: [B, K, P, D].
        v_pages: [B, K, P, D].
        slots: [T] int32, block * P + offset of each token. Slots are distinct, except in the null
            block, where padding may write. A token with a negative slot is not stored.
        k_scale: divisor of the keys before they are stored, a scalar or [K]; None means 1. Numbers
            beyond the range of an 8-bit pool saturate.
        v_scale: divisor of the values, likewise.
        implementation: as for `paged_attention`.

    Returns:
        The two pools.
    """
    write = _WRITE[_choose(implementation)]
    k = xla.as_stored(k, k_pages.dtype, k_scale)
    v = xla.as_stored(v, v_pages.dtype, v_scale)
    return write(k, v, k_pages, v_pages, slots)


def copy_blocks(
    k_pages: jax.Array, v_pages: jax.Array, src: jax.Array, dst: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Copies whole pages within the pool (copy-on-write), in place if the pool is donated.

    All sources are read before any destination is written, so that a block that was freed and
    allocated again within a step may be both source and destination.

    Args:
        k_pages: [B, K, P, D].
        v_pages: [B, K, P, D].
        src: [N] int32, blocks to read; 0 as padding.
        dst: [N] int32, blocks to write, all distinct; 0 as padding, or a negative number, for which
            nothing is copied.

    Returns:
        The two pools.
    """
    return xla.copy_pages(k_pages, src, dst), xla.copy_pages(v_pages, src, dst)


def _choose(implementation: Implementation | None) -> str:
    if implementation is None:
        return {"gpu": "triton", "cpu": "cpu"}.get(jax.default_backend(), "xla")
    if implementation not in _ATTENTION:
        raise ValueError(f"implementation must be one of {[*_ATTENTION]}; got {implementation!r}")
    return implementation


def _check(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    block_tables: jax.Array,
    context_lens: jax.Array,
    query_starts: jax.Array,
    sinks: jax.Array | None,
) -> None:
    if q.ndim != 3 or k_pages.ndim != 4 or k_pages.shape != v_pages.shape:
        raise ValueError(
            f"q must be [T, H, D] and both pools [B, K, P, D]; got {q.shape}, {k_pages.shape}, "
            f"{v_pages.shape}"
        )
    heads, kv_heads = q.shape[1], k_pages.shape[1]
    if q.shape[2] != k_pages.shape[3] or heads % kv_heads:
        raise ValueError(
            f"q {q.shape} must have the pool's head size and a multiple of its heads; the pool is "
            f"{k_pages.shape}"
        )
    rows = block_tables.shape[0]
    if context_lens.shape != (rows,) or query_starts.shape != (rows + 1,):
        raise ValueError(
            f"block_tables {block_tables.shape} requires context_lens [{rows}] and query_starts "
            f"[{rows + 1}]; got {context_lens.shape}, {query_starts.shape}"
        )
    if sinks is not None and sinks.shape != (heads,):
        raise ValueError(f"sinks must be [{heads}], one per query head; got {sinks.shape}")
    if not jnp.issubdtype(q.dtype, jnp.floating):
        raise ValueError(f"q must be floating point; got {q.dtype}")
