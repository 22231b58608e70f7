"""Paged attention and cache writes in plain XLA, for any device; on a CPU they are the product.

Loops with dynamic trip counts, so that cost follows the tokens that are there and not the buckets:
over (sequence, piece of its context) for sequences with a single query token, and over (tile of
query tokens of one sequence, piece of context) for the rest. Pieces start at multiples of their
size and tiles at the sequence's first query token, so a token's sums never depend on what else is
in the batch. The softmax is online (Milakov and Gimelshein 2018, algorithm 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

# Tokens of context that one step of a loop takes, and query tokens of a prefill tile: the fastest
# of 128, 256 and 512 (tile: 32, 64 and 128) in bench/attention_cpu.py on two cores.
DECODE_PIECE = 256
PREFILL_PIECE = 256
PREFILL_TILE = 128
_MASKED = -1e30  # finite, so that a row with nothing seen yet gives exp(0), not NaN


class _Softmax(NamedTuple):
    """State of an online softmax over rows: (maximum, sum, weighted values)."""

    top: jax.Array  # [...]
    total: jax.Array  # [...]
    values: jax.Array  # [..., D]

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> _Softmax:
        """The softmax before any key, for values of this shape."""
        return cls(
            jnp.full(shape[:-1], _MASKED, jnp.float32),
            jnp.zeros(shape[:-1], jnp.float32),
            jnp.zeros(shape, jnp.float32),
        )

    def merge(self, other: _Softmax) -> _Softmax:
        top = jnp.maximum(self.top, other.top)
        a, b = jnp.exp(self.top - top), jnp.exp(other.top - top)
        return _Softmax(
            top,
            self.total * a + other.total * b,
            self.values * a[..., None] + other.values * b[..., None],
        )

    def result(self, sinks: jax.Array | None) -> jax.Array:
        """The weighted mean of the values; zeros where no key was seen. sinks: [...] logits."""
        state = self
        if sinks is not None:
            sinks = jnp.broadcast_to(sinks, self.top.shape)
            state = self.merge(_Softmax(sinks, jnp.ones_like(sinks), jnp.zeros_like(self.values)))
        return jnp.where(
            self.total[..., None] > 0, state.values / jnp.maximum(state.total, 1e-30)[..., None], 0
        )


@dataclass(frozen=True, slots=True)
class _Problem:
    """The arguments of one call, in the shapes that the loops use."""

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
        """First position that a query at `position` sees."""
        if self.window is None:
            return jnp.zeros_like(position)
        return jnp.maximum(position - self.window + 1, 0)

    def piece_size(self, wanted: int) -> int:
        """Whole pages, no more than the table holds."""
        block_size = self.k_pages.shape[2]
        return block_size * max(1, min(wanted // block_size, self.block_tables.shape[1]))


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
    out = _decode(problem)
    if max_query_len > 1:
        out = _prefill(problem, out)
    if v_scale is not None:
        out *= jnp.broadcast_to(jnp.asarray(v_scale, jnp.float32), (kv_heads,))[:, None, None]
    return out.reshape(num_tokens, heads, head_dim).astype(q.dtype)


def _decode(problem: _Problem) -> jax.Array:  # [T, K, G, D]
    """The rows of sequences that have one query token; zeros elsewhere.

    Each context is cut in two by its own length, and two loops take a half each: XLA runs loops
    that don't depend on each other at the same time.
    """
    piece = problem.piece_size(DECODE_PIECE)
    last = problem.context_lens - 1
    first = problem.first_key(last) // piece
    pieces = jnp.where(problem.query_lens == 1, last // piece + 1 - first, 0)
    # A lone piece goes to either loop: merging with nothing changes no bit.
    lone = jnp.arange(pieces.shape[0]) % 2
    half = jnp.where(pieces == 1, lone, (pieces + 1) // 2)
    state = _decode_loop(problem, piece, first, half).merge(
        _decode_loop(problem, piece, first + half, pieces - half)
    )
    return state.result(problem.sinks)


def _decode_loop(
    problem: _Problem, piece: int, first_piece: jax.Array, pieces: jax.Array
) -> _Softmax:  # of [T, K, G] rows
    ends = jnp.cumsum(pieces)

    def step(carry: tuple[jax.Array, _Softmax, _Softmax]) -> tuple[jax.Array, _Softmax, _Softmax]:
        i, state, states = carry
        s, nth = _locate(ends, pieces, i)
        token = problem.query_starts[s]
        query = lax.dynamic_index_in_dim(problem.q, token, 0, keepdims=False)  # [K, G, D]
        fresh = _Softmax.empty(query.shape)
        state = jax.tree.map(lambda new, old: jnp.where(nth == 0, new, old), fresh, state)
        positions = jnp.broadcast_to(problem.context_lens[s] - 1, query.shape[1:2])
        state = _attend(problem, query, positions, s, (first_piece[s] + nth) * piece, piece, state)
        # Stored at every piece; what the sequence's last one stores stays.
        states = jax.tree.map(
            lambda all_rows, row: lax.dynamic_update_index_in_dim(all_rows, row, token, 0),
            states,
            state,
        )
        return i + 1, state, states

    shape = problem.q.shape
    init = (jnp.int32(0), _Softmax.empty(shape[1:]), _Softmax.empty(shape))
    return lax.while_loop(lambda carry: carry[0] < ends[-1], step, init)[2]


def _prefill(problem: _Problem, out: jax.Array) -> jax.Array:  # [T, K, G, D]
    """Fills the rows of sequences that have several query tokens."""
    num_tokens, kv_heads, group, head_dim = out.shape
    piece = problem.piece_size(PREFILL_PIECE)
    tile = min(PREFILL_TILE, num_tokens)
    tiles = jnp.where(problem.query_lens > 1, -(-problem.query_lens // tile), 0)
    ends = jnp.cumsum(tiles)
    sinks = None if problem.sinks is None else jnp.tile(problem.sinks, (1, tile))

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
        positions = jnp.repeat(jnp.where(owned, tokens + offset, -1), group)  # [tile * G]
        query = lax.dynamic_slice_in_dim(problem.q, base, tile)  # [tile, K, G, D]
        query = query.transpose(1, 0, 2, 3).reshape(kv_heads, tile * group, head_dim)
        state = lax.fori_loop(
            problem.first_key(first + offset) // piece,
            (stop - 1 + offset) // piece + 1,
            lambda n, state: _attend(problem, query, positions, s, n * piece, piece, state),
            _Softmax.empty(query.shape),
        )
        rows = state.result(sinks).reshape(kv_heads, tile, group, head_dim).transpose(1, 0, 2, 3)
        before = lax.dynamic_slice_in_dim(out, base, tile)
        rows = jnp.where(owned[:, None, None, None], rows, before)
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
    keys, values = _gather(problem, s, start, piece)
    scores = jnp.einsum("krd,kcd->krc", query, keys)
    if problem.softcap is not None:
        scores = problem.softcap * jnp.tanh(scores / problem.softcap)
    key_positions = start + jnp.arange(piece)
    seen = key_positions <= positions[:, None]  # [R, piece]
    if problem.window is not None:
        seen &= key_positions > positions[:, None] - problem.window
    scores = jnp.where(seen, scores, _MASKED)
    top = jnp.maximum(state.top, scores.max(axis=-1))
    # A row that has seen nothing yet gathers weights of 1; its first real key decays them to 0.
    weights = jnp.exp(scores - top[..., None])
    decay = jnp.exp(state.top - top)
    return _Softmax(
        top=top,
        total=state.total * decay + weights.sum(axis=-1),
        values=state.values * decay[..., None] + jnp.einsum("krc,kcd->krd", weights, values),
    )


def _gather(
    problem: _Problem, s: jax.Array, start: jax.Array, piece: int
) -> tuple[jax.Array, jax.Array]:
    """Keys and values of the positions start : start + piece, each [K, piece, D].

    Values that no query of the sequence sees are zeros, for 0 x NaN is NaN. Unseen keys may be
    anything: their scores are masked.
    """
    num_blocks, kv_heads, block_size, head_dim = problem.k_pages.shape
    end = problem.context_lens[s]
    begin = problem.first_key(end - problem.query_lens[s])
    entries = start // block_size + jnp.arange(piece // block_size)
    # Table entries outside the context may point anywhere, even out of the pool.
    pages = problem.block_tables[s, jnp.clip(entries, begin // block_size, (end - 1) // block_size)]
    rows = pages * kv_heads + jnp.arange(kv_heads)[:, None]  # [K, pages]

    def gather(pool: jax.Array) -> jax.Array:  # [K, pages, P * D]
        long_rows = pool.reshape(num_blocks * kv_heads, block_size * head_dim)
        return long_rows.at[rows].get(mode="clip")

    def visible(position: jax.Array) -> jax.Array:
        """Elements of each page's row that come before a position."""
        return ((position - entries * block_size) * head_dim)[:, None]  # [pages, 1]

    element = jnp.arange(block_size * head_dim)
    seen = element < visible(end)
    if problem.window is not None:
        seen &= element >= visible(begin)
    # Long rows, fenced off from what follows: XLA:CPU copies them with vector instructions, and
    # element by element where it sees a short last axis.
    keys, values = lax.optimization_barrier(
        (gather(problem.k_pages), jnp.where(seen, gather(problem.v_pages), 0))
    )
    shape = (kv_heads, piece, head_dim)
    return keys.reshape(shape).astype(jnp.float32), values.reshape(shape).astype(jnp.float32)


def _locate(ends: jax.Array, counts: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Owner of flat work item i, and its place among the owner's items; ends = cumsum(counts)."""
    owner = jnp.sum(ends <= i, dtype=jnp.int32)
    return owner, i - (ends[owner] - counts[owner])


def as_stored(x: jax.Array, dtype: jnp.dtype, scale: jax.Array | float | None) -> jax.Array:
    """Keys or values [T, K, D] as a pool of this type holds them; an 8-bit one saturates."""
    if scale is not None:
        factor = jnp.broadcast_to(jnp.asarray(scale, jnp.float32), (x.shape[1],))
        x = x.astype(jnp.float32) / factor[:, None]
    if dtype.itemsize == 1:  # a cast beyond the range gives NaN
        limit = float(jnp.finfo(dtype).max)
        x = jnp.clip(x.astype(jnp.float32), -limit, limit)
    return x.astype(dtype)


def write_kv(
    k: jax.Array,  # [T, K, D], as stored
    v: jax.Array,  # [T, K, D], as stored
    k_pages: jax.Array,  # [B, K, P, D]
    v_pages: jax.Array,  # [B, K, P, D]
    slots: jax.Array,  # [T]
) -> tuple[jax.Array, jax.Array]:
    num_blocks, _, block_size, _ = k_pages.shape
    block = jnp.where(slots < 0, num_blocks, slots // block_size)  # past the end: dropped
    return tuple(
        pages.at[block, :, slots % block_size].set(x, mode="drop")
        for pages, x in ((k_pages, k), (v_pages, v))
    )  # type: ignore[return-value]


def copy_pages(pages: jax.Array, src: jax.Array, dst: jax.Array) -> jax.Array:
    return pages.at[jnp.where(dst < 0, pages.shape[0], dst)].set(
        pages.at[src].get(mode="clip"), mode="drop"
    )
