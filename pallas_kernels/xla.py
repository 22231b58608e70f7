"""Paged attention and cache writes in plain XLA, for any device; on a CPU they are the product.

Two loops with dynamic trip counts, so that cost follows the tokens that are there and not the
buckets: one over (sequence, piece of its context) for sequences with a single query token, one over
(tile of query tokens of one sequence, piece of context) for the rest. Pieces start at multiples of
their size and tiles at the sequence's first query token, so a token's sums never depend on what
else is in the batch. The softmax is online (Milakov and Gimelshein 2018, algorithm 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

DECODE_PIECE = 256  # context tokens a step of the decode loop
PREFILL_PIECE = 256
PREFILL_TILE = 64  # query tokens
_MASKED = -1e30  # finite, so that a row with nothing seen yet gives exp(0), not NaN


@dataclass(frozen=True, slots=True)
class _Problem:
    """The arguments of one call, in the shapes the loops use."""

    q: jax.Array  # [T, K, G, D], scaled
    k_pages: jax.Array
    v_pages: jax.Array
    block_tables: jax.Array
    context_lens: jax.Array
    query_starts: jax.Array
    window: int | None
    softcap: float | None
    sinks: jax.Array | None  # [K, G]

    @property
    def query_lens(self) -> jax.Array:  # [S]
        return self.query_starts[1:] - self.query_starts[:-1]

    def first_key(self, position: jax.Array) -> jax.Array:
        """First position that a query at `position` can see."""
        return jnp.zeros_like(position) if self.window is None else position - self.window + 1


class _Softmax(NamedTuple):
    """State of an online softmax over rows R: (maximum, sum, weighted values)."""

    top: jax.Array  # [..., R]
    total: jax.Array  # [..., R]
    values: jax.Array  # [..., R, D]

    def result(self) -> jax.Array:
        return self.values / self.total[..., None]


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
) -> jax.Array:  # [T, H, D]
    num_tokens, heads, head_dim = q.shape
    kv_heads = k_pages.shape[1]
    group = heads // kv_heads
    query = q.reshape(num_tokens, kv_heads, group, head_dim).astype(jnp.float32) * scale
    if k_scale is not None:
        query *= jnp.broadcast_to(jnp.asarray(k_scale, jnp.float32), (kv_heads,))[:, None, None]
    problem = _Problem(
        q=query,
        k_pages=k_pages,
        v_pages=v_pages,
        block_tables=block_tables,
        context_lens=context_lens,
        query_starts=query_starts,
        window=window,
        softcap=softcap,
        sinks=None if sinks is None else sinks.astype(jnp.float32).reshape(kv_heads, group),
    )
    out = jnp.zeros_like(query)
    out = _prefill(problem, _decode(problem, out))
    if v_scale is not None:
        out *= jnp.broadcast_to(jnp.asarray(v_scale, jnp.float32), (kv_heads,))[:, None, None]
    return out.reshape(num_tokens, heads, head_dim).astype(q.dtype)


def _decode(problem: _Problem, out: jax.Array) -> jax.Array:
    """Fills the rows of sequences that have one query token."""
    piece = _piece_size(problem, DECODE_PIECE)
    last = problem.context_lens - 1
    first_piece = jnp.maximum(problem.first_key(last), 0) // piece
    pieces = jnp.where(problem.query_lens == 1, last // piece + 1 - first_piece, 0)
    ends = jnp.cumsum(pieces)

    def step(carry: tuple[jax.Array, _Softmax, jax.Array]) -> tuple[jax.Array, _Softmax, jax.Array]:
        i, state, out = carry
        s, nth = _locate(ends, pieces, i)
        token = problem.query_starts[s]
        query = lax.dynamic_index_in_dim(problem.q, token, 0, keepdims=False)  # [K, G, D]
        start = (first_piece[s] + nth) * piece
        fresh = _first_state(problem.sinks, query.shape)
        state = jax.tree.map(lambda new, old: jnp.where(nth == 0, new, old), fresh, state)
        positions = jnp.broadcast_to(last[s], query.shape[1:2])
        state = _attend(problem, query, positions, s, start, piece, state)
        # Written at every piece; the last one of the sequence stays.
        return i + 1, state, lax.dynamic_update_index_in_dim(out, state.result(), token, 0)

    init = (jnp.int32(0), _first_state(None, out.shape[1:]), out)
    return lax.while_loop(lambda carry: carry[0] < ends[-1], step, init)[2]


def _prefill(problem: _Problem, out: jax.Array) -> jax.Array:
    """Fills the rows of sequences that have several query tokens."""
    num_tokens, kv_heads, group, head_dim = out.shape
    if num_tokens == 1:
        return out
    piece = _piece_size(problem, PREFILL_PIECE)
    tile = min(PREFILL_TILE, num_tokens)
    tiles = jnp.where(problem.query_lens > 1, -(-problem.query_lens // tile), 0)
    ends = jnp.cumsum(tiles)

    def step(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        i, out = carry
        s, nth = _locate(ends, tiles, i)
        first = problem.query_starts[s] + nth * tile
        stop = jnp.minimum(first + tile, problem.query_starts[s + 1])
        base = jnp.minimum(first, num_tokens - tile)  # the slice must stay inside the batch
        tokens = base + jnp.arange(tile)
        owned = (tokens >= first) & (tokens < stop)
        offset = problem.context_lens[s] - problem.query_starts[s + 1]
        # Rows of other sequences see nothing, and are not stored.
        positions = jnp.where(owned, tokens + offset, -1)  # [tile]

        query = lax.dynamic_slice_in_dim(problem.q, base, tile)  # [tile, K, G, D]
        query = query.transpose(1, 0, 2, 3).reshape(kv_heads, tile * group, head_dim)
        row_positions = jnp.repeat(positions, group)
        state = _first_state(
            None if problem.sinks is None else jnp.tile(problem.sinks, (1, tile)), query.shape
        )
        first_piece = jnp.maximum(problem.first_key(first + offset), 0) // piece
        state = lax.fori_loop(
            first_piece,
            (stop - 1 + offset) // piece + 1,
            lambda n, state: _attend(problem, query, row_positions, s, n * piece, piece, state),
            state,
        )
        rows = state.result().reshape(kv_heads, tile, group, head_dim).transpose(1, 0, 2, 3)
        rows = jnp.where(
            owned[:, None, None, None], rows, lax.dynamic_slice_in_dim(out, base, tile)
        )
        return i + 1, lax.dynamic_update_slice_in_dim(out, rows, base, 0)

    return lax.while_loop(lambda carry: carry[0] < ends[-1], step, (jnp.int32(0), out))[1]


def _attend(
    problem: _Problem,
    query: jax.Array,  # [K, R, D]
    positions: jax.Array,  # [R]
    s: jax.Array,
    start: jax.Array,
    piece: int,
    state: _Softmax,
) -> _Softmax:
    """Takes the keys start : start + piece of sequence s into the softmax of some rows."""
    _, kv_heads, block_size, head_dim = problem.k_pages.shape
    width = problem.block_tables.shape[1]
    entries = jnp.minimum(start // block_size + jnp.arange(piece // block_size), width - 1)
    pages = problem.block_tables[s, entries]
    head = jnp.arange(kv_heads)[:, None]

    def gather(pool: jax.Array) -> jax.Array:  # [K, piece, D]
        x = pool.at[pages[None], head].get(mode="clip")
        return x.reshape(kv_heads, piece, head_dim).astype(jnp.float32)

    key_positions = start + jnp.arange(piece)
    scores = jnp.einsum("krd,kcd->krc", query, gather(problem.k_pages))
    if problem.softcap is not None:
        scores = problem.softcap * jnp.tanh(scores / problem.softcap)
    seen = key_positions <= positions[:, None]  # [R, piece]
    if problem.window is not None:
        seen &= key_positions > positions[:, None] - problem.window
    scores = jnp.where(seen, scores, _MASKED)
    top = jnp.maximum(state.top, scores.max(axis=-1))
    weights = jnp.where(seen, jnp.exp(scores - top[..., None]), 0.0)
    decay = jnp.exp(state.top - top)
    # Stale cells may hold NaN, and 0 x NaN = NaN: mask the values too.
    values = jnp.where(seen.any(axis=0)[:, None], gather(problem.v_pages), 0.0)
    return _Softmax(
        top=top,
        total=state.total * decay + weights.sum(axis=-1),
        values=state.values * decay[..., None] + jnp.einsum("krc,kcd->krd", weights, values),
    )


def _first_state(sinks: jax.Array | None, shape: tuple[int, ...]) -> _Softmax:
    """The softmax before any key: nothing, or the sinks alone."""
    return _Softmax(
        top=jnp.full(shape[:-1], _MASKED, jnp.float32) if sinks is None else sinks,
        total=jnp.full(shape[:-1], 0.0 if sinks is None else 1.0, jnp.float32),
        values=jnp.zeros(shape, jnp.float32),
    )


def _piece_size(problem: _Problem, wanted: int) -> int:
    """Whole pages, no more than the table holds."""
    block_size = problem.k_pages.shape[2]
    return block_size * max(1, min(wanted // block_size, problem.block_tables.shape[1]))


def _locate(ends: jax.Array, counts: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Owner of flat work item i, and its place among the owner's items; ends = cumsum(counts)."""
    owner = jnp.sum(ends <= i, dtype=jnp.int32)
    return owner, i - (ends[owner] - counts[owner])


def write_pages(
    x: jax.Array,  # [T, K, D]
    pages: jax.Array,  # [B, K, P, D]
    slots: jax.Array,  # [T]
    scale: jax.Array | float | None,
) -> jax.Array:
    num_blocks, kv_heads, block_size, _ = pages.shape
    if scale is not None:
        factor = jnp.broadcast_to(jnp.asarray(scale, jnp.float32), (kv_heads,))
        x = x.astype(jnp.float32) / factor[:, None]
    if jnp.finfo(pages.dtype).bits == 8:  # a cast beyond the range gives NaN
        limit = float(jnp.finfo(pages.dtype).max)
        x = jnp.clip(x.astype(jnp.float32), -limit, limit)
    block = jnp.where(slots < 0, num_blocks, slots // block_size)  # past the end: dropped
    return pages.at[block, :, slots % block_size].set(x.astype(pages.dtype), mode="drop")


def copy_pages(pages: jax.Array, src: jax.Array, dst: jax.Array) -> jax.Array:
    return pages.at[jnp.where(dst < 0, pages.shape[0], dst)].set(
        pages.at[src].get(mode="clip"), mode="drop"
    )
