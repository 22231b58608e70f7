"""The public functions: check the arguments, choose an implementation.

A KV pool is one array for keys and one for values a layer, `[B, K, P, D]`: B blocks (pages) of P
tokens each, page 0 being the null page that padding may write to. `page_shape` is the one place
that knows the order of the axes after the first; callers may rely on axis 0 being the block.
Keep one pair of arrays a layer: slicing a layer out of a stacked array copies it.
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
    """Shape of a layer's key pool, and of its value pool; allocate both with zeros.

    Unwritten memory may hold NaN, which the kernels mask, but zeros keep the null page finite.
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

    Sequence s owns the query tokens query_starts[s] : query_starts[s + 1]. The last of them stands
    at position context_lens[s] - 1: the context includes the step's own tokens, which `write_kv`
    has stored already. Decodes (one query token), prefill chunks and both together are the same
    call. A padding sequence has no query token and context length 0; padding tokens (from
    query_starts[S] on) give zeros and cost next to nothing.

    A token's result depends on its own sequence alone, bit for bit, for given T, S and W. Cells of
    the pool outside its sequence's context (later slots of the last page, other pages, positions
    that slid out of the window) are never let into a result, NaN or not.

    Args:
        q: [T, H, D] float32, bfloat16 or float16; rotary embedding already applied.
        k_pages: [B, K, P, D], the type of q or float8_e4m3fn or float8_e5m2. H is a multiple of K;
            query head h reads kv head h // (H // K).
        v_pages: as k_pages.
        block_tables: [S, W] int32; entry w of row s is the page of positions w * P and on.
            Entries past the context may be anything.
        context_lens: [S] int32, tokens, at most W * P.
        query_starts: [S + 1] int32, ascending from 0.
        scale: factor on q . k before softcap and softmax, usually D ** -0.5.
        window: a token sees the last `window` positions, its own included; None sees all.
        softcap: scores become softcap * tanh(score / softcap).
        sinks: [H] float32, one more logit a head in the softmax, with no value (gpt-oss).
        k_scale: stored keys times k_scale are the keys; a scalar or [K] float32; None is 1.
        v_scale: likewise for values.
        max_query_len: most query tokens of one sequence, when the caller knows better than T; 1 (a
            pure decode) leaves the prefill code out of the program.
        implementation: "reference" (the definition, in float32), "xla" (any device), "cpu"
            (machine code for float32 pools; "xla" for others) or "triton" (NVIDIA GPUs from sm_80
            on). None chooses for the default backend.

    Returns:
        [T, H, D], the type of q.

    Raises:
        ValueError: shapes that don't fit together, or an unknown implementation.
    """
    _check(q, k_pages, v_pages, block_tables, context_lens, query_starts, sinks)
    chosen = _choose(implementation)
    if chosen == "cpu" and not cpu.reads(k_pages, v_pages):
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
    """Stores new keys and values in the pool; in place where the pool is donated to the jit.

    Args:
        k: [T, K, D] keys, rotary embedding applied.
        v: [T, K, D] values.
        k_pages: [B, K, P, D].
        v_pages: [B, K, P, D].
        slots: [T] int32, block * P + offset of each token; no two tokens share one, save in the
            null block 0, where padding may write. A negative slot is dropped.
        k_scale: keys are divided by it before they are stored: a scalar or [K]; None is 1. Values
            beyond the range of an 8-bit pool saturate.
        v_scale: likewise for values.
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
    """Copies whole pages inside the pool (copy-on-write); in place where the pool is donated.

    Every source is read before any destination is written, so that a block freed and taken again
    within a step may be both.

    Args:
        k_pages: [B, K, P, D].
        v_pages: [B, K, P, D].
        src: [N] int32 blocks to read. Pad with 0.
        dst: [N] int32 blocks to write, distinct save for padding. Pad with 0, or with a negative
            number, which drops the copy.

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
            f"q {q.shape} needs the pool's head size and a multiple of its heads; the pool is "
            f"{k_pages.shape}"
        )
    rows = block_tables.shape[0]
    if context_lens.shape != (rows,) or query_starts.shape != (rows + 1,):
        raise ValueError(
            f"block_tables {block_tables.shape} needs context_lens [{rows}] and query_starts "
            f"[{rows + 1}]; got {context_lens.shape}, {query_starts.shape}"
        )
    if sinks is not None and sinks.shape != (heads,):
        raise ValueError(f"sinks must be [{heads}], one a query head; got {sinks.shape}")
    if not jnp.issubdtype(q.dtype, jnp.floating):
        raise ValueError(f"q must be floating point; got {q.dtype}")
