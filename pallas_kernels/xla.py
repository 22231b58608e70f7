"""Paged attention and cache writes in plain XLA, for any device; on a CPU, attention for pools
that aren't float32.

Loops with dynamic trip counts, so that cost follows the tokens that are there and not the buckets:
over (group of sequences, piece of their contexts) for sequences with a single query token, and over
(tile of query tokens of one sequence, piece of context) for the rest. Pieces start at multiples of
their size and tiles at the sequence's first query token, so a token's sums never depend on what
else is in the batch. The softmax is online (Milakov and Gimelshein 2018, algorithm 3).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

# Tokens of context that one step of a loop takes, and query tokens of a prefill tile: the fastest
# of 128, 256 and 512 (tile: 32, 64 and 128) on two cores.
DECODE_PIECE = 256
PREFILL_PIECE = 256
PREFILL_TILE = 128
# Sequences that one step takes (1, 2, 4, 8: 10.7, 7.6, 6.8, 7.1 ms for 32 of 512 tokens).
DECODE_GROUP = 4
# The last piece of each context is taken as a whole one, a half or a quarter, whichever holds it
# (1, 2, 3 sizes: 32 of 60 tokens 1.3, 0.9, 0.8 ms; 32 of 128: 2.8, 1.8, 1.7; 32 of 512: the same).
DECODE_SIZES = 3
# The most rows of one product of weights and values. The order of a product's sums may depend on
# its number of rows: on a CPU, XLA's library YNNPACK copies the values into another layout where
# the rows fill more than ten of its blocks (of 4 rows or more with AVX2 or AVX-512), and adds up
# in another order then. Measured on a Zen 4 with jax 0.10.2, 0.11.2 and 0.12.0: 2 to 49 rows give
# one result and 52 rows or more give another, for head sizes other than 8, 16, 56, 64 and 128.
VALUE_ROWS = 32
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

    def then(self, piece: _Softmax) -> _Softmax:
        """This and a piece after it, whose maximum is at least as high."""
        decay = jnp.exp(self.top - piece.top)
        return _Softmax(
            piece.top,
            self.total * decay + piece.total,
            self.values * decay[..., None] + piece.values,
        )

    def result(self, sinks: jax.Array | None) -> jax.Array:
        """The weighted mean of the values. sinks: [...] logits with no value."""
        if sinks is None:
            return self.values / self.total[..., None]
        top = jnp.maximum(self.top, sinks)
        decay = jnp.exp(self.top - top)
        total = self.total * decay + jnp.exp(sinks - top)
        return self.values * (decay / total)[..., None]


@dataclass(frozen=True, slots=True)
class _Problem:
    """The arguments of one call, in the shapes that the loops use.

    What doesn't depend on q or the pools is the same in all layers of a step. It stays out of the
    loops, so that XLA computes it once a step and the loops' bodies are small: their size times
    the number of layers is what a step costs to compile and to load.
    """

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
    def block_size(self) -> int:
        return self.k_pages.shape[2]

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
        return self.block_size * max(1, min(wanted // self.block_size, self.block_tables.shape[1]))

    def safe_tables(self, piece: int) -> jax.Array:  # [S, W'], W' whole pieces
        """Block tables whose entries outside what a sequence sees repeat one that it does see.

        Such entries may point anywhere, even out of the pool.
        """
        first = self.first_key(self.context_lens - self.query_lens) // self.block_size
        last = jnp.maximum(self.context_lens - 1, 0) // self.block_size
        pages = piece // self.block_size
        entries = jnp.arange(-(-self.block_tables.shape[1] // pages) * pages)
        return jnp.take_along_axis(
            self.block_tables, jnp.clip(entries, first[:, None], last[:, None]), axis=1
        )


class _Piece(NamedTuple):
    """A piece of the contexts of N sequences that follow each other in the table."""

    sequence: jax.Array  # the first one
    start: jax.Array  # [N] position of its first key
    begin: jax.Array  # [N] keys before this position are seen by no query of the sequence
    end: jax.Array  # [N] context length


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

    Sequences go through the loop in groups, sorted by how many pieces they have.
    """
    num_tokens, kv_heads, group, head_dim = problem.q.shape
    size = min(DECODE_GROUP, problem.query_lens.shape[0])
    piece = problem.piece_size(DECODE_PIECE)
    sizes = sorted({problem.piece_size(piece >> i) for i in range(DECODE_SIZES)})
    last = problem.context_lens - 1
    first_key = problem.first_key(last)
    first_piece = first_key // piece
    pieces = jnp.where(problem.query_lens == 1, last // piece + 1 - first_piece, 0)  # [S]
    padded = -len(pieces) % size
    order = jnp.pad(jnp.argsort(-pieces), (0, padded))
    pieces = jnp.pad(-jnp.sort(-pieces), (0, padded))
    groups = len(order) // size
    most = -(-problem.block_tables.shape[1] * problem.block_size // piece)
    owner, nth, count = _flat_items(pieces[::size], groups * most)
    tables = jnp.where(pieces[:, None] > 0, problem.safe_tables(piece)[order], 0)
    tokens = jnp.minimum(problem.query_starts[order], num_tokens - 1)
    fields = jnp.stack([first_piece[order] * piece, first_key[order], problem.context_lens[order]])
    spare = max(0, 2 - group)  # a single row's scores would be summed in another order
    queries = jnp.pad(problem.q[tokens], ((0, 0), (0, 0), (0, spare), (0, 0)))
    shape = (size * kv_heads, group + spare, head_dim)
    items = jnp.stack([owner * size, nth], axis=1)

    def step(carry: tuple[jax.Array, _Softmax, jax.Array]) -> tuple[jax.Array, _Softmax, jax.Array]:
        i, state, out = carry
        first, nth = _unpack(items, i)
        start, begin, end = lax.dynamic_slice_in_dim(fields, first, size, axis=1)  # [size] each
        place = _Piece(first, start + nth * piece, begin, end)
        empty = _Softmax.empty(shape)
        state = jax.tree.map(lambda old, new: jnp.where(nth == 0, new, old), state, empty)
        positions = jnp.repeat(end - 1, kv_heads)[:, None]
        query = _rows(queries, first, size).reshape(shape)
        # The last piece of a context is seldom full: fewer keys, and the same bits, for keys that
        # are not seen add nothing.
        longest = jnp.max(end - place.start)
        weigh = [functools.partial(_weigh, problem, tables, piece=size) for size in sizes]
        smallest = sum(((longest > size).astype(jnp.int32) for size in sizes[:-1]), jnp.int32(0))
        state = state.then(lax.switch(smallest, weigh, query, positions, place, state.top))
        rows = state.result(sinks).reshape(size, kv_heads, group + spare, head_dim)
        # Stored at every piece; what the group's last one stores stays.
        return i + 1, state, _store(out, rows, first)

    sinks = problem.sinks
    if sinks is not None:
        sinks = jnp.tile(jnp.pad(sinks, ((0, 0), (0, spare))), (size, 1))
    out = jnp.zeros_like(queries)
    init = (jnp.uint32(0), _Softmax.empty(shape), out)
    out = lax.while_loop(lambda carry: carry[0] < count, step, init)[2][:, :, :group]
    target = jnp.where(pieces > 0, tokens, num_tokens)  # past the end: dropped
    return jnp.zeros_like(problem.q).at[target].set(out, mode="drop")


def _prefill(problem: _Problem, out: jax.Array) -> jax.Array:  # [T, K, G, D]
    """Fills the rows of sequences that have several query tokens."""
    num_tokens, kv_heads, group, head_dim = out.shape
    piece = problem.piece_size(PREFILL_PIECE)
    tables = problem.safe_tables(piece)
    tile = min(PREFILL_TILE, num_tokens)
    tiles = jnp.where(problem.query_lens > 1, -(-problem.query_lens // tile), 0)
    sinks = None if problem.sinks is None else jnp.tile(problem.sinks, (1, tile))
    owner, nth, count = _flat_items(tiles, num_tokens // tile + tiles.shape[0])
    starts, ends = problem.query_starts[:-1][owner], problem.query_starts[1:][owner]
    first = starts + nth * tile
    stop = jnp.minimum(first + tile, ends)
    context = problem.context_lens[owner]
    offset = context - ends  # from a token's place in the batch to its position
    items = jnp.stack(
        [
            owner,
            problem.first_key(starts + offset),
            context,
            jnp.minimum(first, num_tokens - tile),  # the slice must stay inside the batch
            first,
            stop,
            offset,
            problem.first_key(first + offset) // piece,
            (stop - 1 + offset) // piece + 1,
        ],
        axis=1,
    )

    def step(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        i, out = carry
        s, begin, end, base, first, stop, offset, first_piece, end_piece = _unpack(items, i)
        tokens = base + jnp.arange(tile)
        owned = (tokens >= first) & (tokens < stop)
        # Rows of other sequences see nothing, and are not stored.
        positions = jnp.repeat(jnp.where(owned, tokens + offset, -1), group)[None]  # [1, tile * G]
        query = _rows(problem.q, base, tile)  # [tile, K, G, D]
        query = query.transpose(1, 0, 2, 3).reshape(kv_heads, tile * group, head_dim)
        state = lax.fori_loop(
            first_piece,
            end_piece,
            lambda n, state: state.then(
                _weigh(
                    problem,
                    tables,
                    query,
                    positions,
                    _Piece(s, *(x[None] for x in (n * piece, begin, end))),
                    state.top,
                    piece=piece,
                )
            ),
            _Softmax.empty(query.shape),
        )
        rows = state.result(sinks).reshape(kv_heads, tile, group, head_dim).transpose(1, 0, 2, 3)
        rows = jnp.where(owned[:, None, None, None], rows, _rows(out, base, tile))
        return i + 1, _store(out, rows, base)

    return lax.while_loop(lambda carry: carry[0] < count, step, (jnp.uint32(0), out))[1]


def _weigh(
    problem: _Problem,
    tables: jax.Array,  # [S, W']
    query: jax.Array,  # [N * K, R, D]
    positions: jax.Array,  # [N * K or 1, R or 1]
    place: _Piece,
    top: jax.Array,  # [N * K, R]
    *,
    piece: int,
) -> _Softmax:
    """The keys of a piece alone, weighed by a maximum that is at least `top`."""
    keys, values = _gather(problem, tables, place, piece)
    scores = jnp.einsum("krd,kcd->krc", query, keys)
    if problem.softcap is not None:
        scores = problem.softcap * jnp.tanh(scores / problem.softcap)
    key_positions = place.start[:, None] + jnp.arange(piece)  # [N, piece]
    key_positions = jnp.repeat(key_positions, len(query) // len(key_positions), axis=0)[:, None]
    seen = key_positions <= positions[..., None]  # [N * K, R or 1, piece]
    if problem.window is not None:
        seen &= key_positions > positions[..., None] - problem.window
    scores = jnp.where(seen, scores, _MASKED)
    top = jnp.maximum(top, scores.max(axis=-1))
    # A row that has seen nothing yet gathers weights of 1; its first real key decays them to 0.
    weights = jnp.exp(scores - top[..., None])
    return _Softmax(top, _sum_last(weights), _weighted_values(weights, values))


def _weighted_values(weights: jax.Array, values: jax.Array) -> jax.Array:  # [N * K, R, D]
    """The product of weights [N * K, R, piece] and values [N * K, piece, D], summed in one order
    for every R."""
    parts = -(-weights.shape[1] // VALUE_ROWS)
    products = [
        jnp.einsum("krc,kcd->krd", part, values) for part in jnp.array_split(weights, parts, axis=1)
    ]
    return jnp.concatenate(products, axis=1)


def _sum_last(x: jax.Array) -> jax.Array:
    """x.sum(axis=-1), in an order that doesn't depend on the other dimensions' sizes.

    What a reduction compiles to does: fewer than 8 rows are summed in another order.
    """
    while x.shape[-1] % 2 == 0:
        first, second = jnp.split(x, 2, axis=-1)
        x = first + second
    return functools.reduce(jnp.add, (x[..., i] for i in range(x.shape[-1])))


def _gather(
    problem: _Problem, tables: jax.Array, place: _Piece, piece: int
) -> tuple[jax.Array, jax.Array]:
    """Keys and values of a piece, each [N * K, piece, D].

    Values that no query of the sequence sees are zeros, for 0 x NaN is NaN. Unseen keys may be
    anything: their scores are masked.
    """
    num_blocks, kv_heads, block_size, head_dim = problem.k_pages.shape
    first = lax.shift_right_logical(place.start, jnp.int32(block_size.bit_length() - 1))

    def entries(n: int) -> jax.Array:  # [1, pages]
        where = (_index(place.sequence + n), _index(first[n]))
        return lax.dynamic_slice(tables, where, (1, piece // block_size))

    pages = jnp.concatenate([entries(n) for n in range(len(first))])  # [N, pages]
    rows = pages[:, None] * kv_heads + jnp.arange(kv_heads)[:, None]  # [N, K, pages]

    def gather(pool: jax.Array) -> jax.Array:  # [N, K, pages, P * D]
        long_rows = pool.reshape(num_blocks * kv_heads, block_size * head_dim)
        return long_rows.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False)

    # Of each page's row, the elements that come before the context's end, and from its begin on.
    element = jnp.arange(piece * head_dim).reshape(-1, block_size * head_dim)
    lengths = (place.end - place.start)[:, None, None, None]
    seen = element < lengths * head_dim
    if problem.window is not None:
        seen &= element >= (place.begin - place.start)[:, None, None, None] * head_dim
    # Long rows, fenced off from what follows: XLA:CPU copies them with vector instructions, and
    # element by element where it sees a short last axis.
    keys, values = lax.optimization_barrier(
        (gather(problem.k_pages), jnp.where(seen, gather(problem.v_pages), 0))
    )
    shape = (-1, piece, head_dim)
    return keys.reshape(shape).astype(jnp.float32), values.reshape(shape).astype(jnp.float32)


def _flat_items(counts: jax.Array, limit: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Lists the items of all owners: whose each is, its place among the owner's, and how many.

    counts: [S] items of each owner. The lists are [limit]; entries past the count mean nothing.
    """
    ends = jnp.cumsum(counts)
    i = jnp.arange(limit)
    owner = jnp.minimum(jnp.sum(ends <= i[:, None], axis=1), counts.shape[0] - 1)
    return owner, i - (ends - counts)[owner], ends[-1].astype(jnp.uint32)


def _index(i: jax.Array) -> jax.Array:
    """An index that can't be negative: jax adds no instructions for the case that it is."""
    return i.astype(jnp.uint32)


def _rows(array: jax.Array, start: jax.Array, size: int) -> jax.Array:
    """array[start : start + size]"""
    zeros = [jnp.uint32(0)] * (array.ndim - 1)
    return lax.dynamic_slice(array, (_index(start), *zeros), (size, *array.shape[1:]))


def _row(array: jax.Array, i: jax.Array) -> jax.Array:
    """array[i]"""
    return lax.squeeze(_rows(array, i, 1), (0,))


def _unpack(items: jax.Array, i: jax.Array) -> list[jax.Array]:
    """The fields of item i of [N, F], each a scalar."""
    row = _row(items, i)
    return [lax.squeeze(lax.slice(row, (f,), (f + 1,)), (0,)) for f in range(row.shape[0])]


def _store(array: jax.Array, rows: jax.Array, start: jax.Array) -> jax.Array:
    """array with array[start : start + n] = rows"""
    zeros = [jnp.uint32(0)] * (array.ndim - 1)
    return lax.dynamic_update_slice(array, rows, (_index(start), *zeros))


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
