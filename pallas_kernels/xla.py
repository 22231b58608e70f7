"""Paged attention and cache writes in plain XLA, for any device.

On a CPU, attention to float32 pools has kernels of its own (`cpu_kernels`); this module serves the
other types there.

Loops have dynamic trip counts, so that the cost follows the tokens in the batch and not the size of
the buckets. Sequences with one query token are processed in groups: the loop runs over (group of
sequences, key tile). The other sequences are processed in tiles of query tokens: the loop runs over
(query tile of one sequence, key tile). Key tiles start at multiples of their size and query tiles
at the sequence's first query token, so a token's sums do not depend on the rest of the batch. The
softmax is online (Milakov and Gimelshein 2018, algorithm 3).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

# Keys per loop step of decode and of prefill, and query tokens per query tile: the fastest of 128,
# 256 and 512 keys and of 32, 64 and 128 query tokens, on two cores.
DECODE_KEY_TILE = 256
PREFILL_KEY_TILE = 256
PREFILL_QUERY_TILE = 128
# Sequences per decode step (1, 2, 4, 8: 10.7, 7.6, 6.8, 7.1 ms for 32 sequences of 512 tokens).
DECODE_SEQUENCES = 4
# The last key tile of a context is read as a whole tile, a half or a quarter, whichever suffices.
# (With 1, 2 and 3 such sizes: 1.3, 0.9, 0.8 ms for 32 sequences of 60 tokens, 2.8, 1.8, 1.7 ms for
# 32 of 128, no difference for 32 of 512.)
LAST_TILE_SIZES = 3
# The most rows of one product of weights and values. The order of a product's sums may depend on
# its number of rows: on a CPU, XLA's library YNNPACK copies the values into another layout where
# the rows fill more than ten of its blocks (of 4 rows or more with AVX2 or AVX-512), and adds up
# in another order then. Measured with jax 0.10.2, 0.11.2 and 0.12.0 on a Zen 4: 2 to 49 rows give
# one result and 52 rows or more give another, for head sizes other than 8, 16, 56, 64 and 128.
# With AVX2 alone (emulated), the same holds for head size 256.
MAX_PRODUCT_ROWS = 32
_MASKED = -1e30  # finite, so that a row that has seen no key gives exp(0), not NaN


class _Softmax(NamedTuple):
    """State of an online softmax, one per row."""

    maximum: jax.Array  # [...] of the scores so far
    total: jax.Array  # [...] sum of the weights, which are exp(score - maximum)
    values: jax.Array  # [..., D] weighted sum of the values

    @classmethod
    def initial(cls, shape: tuple[int, ...]) -> _Softmax:
        """The state before the first key, for weighted values of this shape."""
        return cls(
            jnp.full(shape[:-1], _MASKED, jnp.float32),
            jnp.zeros(shape[:-1], jnp.float32),
            jnp.zeros(shape, jnp.float32),
        )

    def combine(self, tile: _Softmax) -> _Softmax:
        """Adds a key tile, whose maximum must be at least this state's."""
        decay = jnp.exp(self.maximum - tile.maximum)
        return _Softmax(
            tile.maximum,
            self.total * decay + tile.total,
            self.values * decay[..., None] + tile.values,
        )

    def result(self, sinks: jax.Array | None) -> jax.Array:
        """The weighted mean of the values, [..., D]. sinks: [...] logits that have no value."""
        if sinks is None:
            return self.values / self.total[..., None]
        maximum = jnp.maximum(self.maximum, sinks)
        decay = jnp.exp(self.maximum - maximum)
        total = self.total * decay + jnp.exp(sinks - maximum)
        return self.values * (decay / total)[..., None]


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The arguments of one call, in the shapes that the loops use.

    What does not depend on q or the pools is the same in all layers of a step. It is computed
    outside the loops, so that XLA computes it once per step and the loop bodies stay small. The
    size of the loop bodies times the number of layers determines how long a step takes to compile
    and to load.
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
        """The first position that a query at `position` sees."""
        if self.window is None:
            return jnp.zeros_like(position)
        return jnp.maximum(position - self.window + 1, 0)

    def tile_size(self, wanted: int) -> int:
        """`wanted` keys, rounded down to whole pages: at least one, at most a table's width."""
        return self.block_size * max(1, min(wanted // self.block_size, self.block_tables.shape[1]))

    def safe_tables(self, tile_size: int) -> jax.Array:  # [S, W'], padded to whole key tiles
        """Block tables in which every entry is a page that the sequence sees.

        Entries outside of what a sequence sees may hold anything, even numbers beyond the pool.
        They are replaced by an entry that it does see.
        """
        first = self.first_key(self.context_lens - self.query_lens) // self.block_size
        last = jnp.maximum(self.context_lens - 1, 0) // self.block_size
        pages = tile_size // self.block_size
        entries = jnp.arange(-(-self.block_tables.shape[1] // pages) * pages)
        return jnp.take_along_axis(
            self.block_tables, jnp.clip(entries, first[:, None], last[:, None]), axis=1
        )


class _KeyTile(NamedTuple):
    """One key tile of each of N sequences, which are neighbours in the block table."""

    first_sequence: jax.Array
    start: jax.Array  # [N] position of the tile's first key
    begin: jax.Array  # [N] the first position that any query of the sequence sees
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
    arguments = _Arguments(
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
    out = _decode(arguments)
    if max_query_len > 1:
        out = _prefill(arguments, out)
    if v_scale is not None:
        out *= jnp.broadcast_to(jnp.asarray(v_scale, jnp.float32), (kv_heads,))[:, None, None]
    return out.reshape(num_tokens, heads, head_dim).astype(q.dtype)


def _decode(arguments: _Arguments) -> jax.Array:  # [T, K, G, D]
    """The rows of sequences that have one query token; zeros elsewhere.

    Sequences are sorted by their number of key tiles and processed in groups of DECODE_SEQUENCES.
    """
    num_tokens, kv_heads, group, head_dim = arguments.q.shape
    sequences = min(DECODE_SEQUENCES, arguments.query_lens.shape[0])
    tile_size = arguments.tile_size(DECODE_KEY_TILE)
    sizes = sorted({arguments.tile_size(tile_size >> i) for i in range(LAST_TILE_SIZES)})
    last = arguments.context_lens - 1
    first_key = arguments.first_key(last)
    first_tile = first_key // tile_size
    tiles = jnp.where(arguments.query_lens == 1, last // tile_size + 1 - first_tile, 0)  # [S]
    padded = -len(tiles) % sequences
    order = jnp.pad(jnp.argsort(-tiles), (0, padded))
    tiles = jnp.pad(-jnp.sort(-tiles), (0, padded))
    groups = len(order) // sequences
    max_tiles = -(-arguments.block_tables.shape[1] * arguments.block_size // tile_size)
    owner, nth, count = _work_items(tiles[::sequences], groups * max_tiles)
    tables = jnp.where(tiles[:, None] > 0, arguments.safe_tables(tile_size)[order], 0)
    tokens = jnp.minimum(arguments.query_starts[order], num_tokens - 1)
    fields = jnp.stack(
        [first_tile[order] * tile_size, first_key[order], arguments.context_lens[order]]
    )
    spare = max(0, 2 - group)  # a product of one row would be summed in another order
    queries = jnp.pad(arguments.q[tokens], ((0, 0), (0, 0), (0, spare), (0, 0)))
    shape = (sequences * kv_heads, group + spare, head_dim)
    items = jnp.stack([owner * sequences, nth], axis=1)

    def step(carry: tuple[jax.Array, _Softmax, jax.Array]) -> tuple[jax.Array, _Softmax, jax.Array]:
        i, state, out = carry
        first, nth = _unpack(items, i)
        # Three arrays, each [sequences].
        start, begin, end = lax.dynamic_slice_in_dim(fields, first, sequences, axis=1)
        tile = _KeyTile(first, start + nth * tile_size, begin, end)
        initial = _Softmax.initial(shape)
        state = jax.tree.map(lambda old, new: jnp.where(nth == 0, new, old), state, initial)
        positions = jnp.repeat(end - 1, kv_heads)[:, None]
        query = _rows(queries, first, sequences).reshape(shape)
        # The last key tile of a context is seldom full. A smaller tile gives the same bits, because
        # keys that are not seen add nothing.
        longest = jnp.max(end - tile.start)
        attend = [functools.partial(_attend_tile, arguments, tables, tile_size=n) for n in sizes]
        smallest = sum(((longest > n).astype(jnp.int32) for n in sizes[:-1]), jnp.int32(0))
        state = state.combine(lax.switch(smallest, attend, query, positions, tile, state.maximum))
        rows = state.result(sinks).reshape(sequences, kv_heads, group + spare, head_dim)
        # Stored after every key tile; the result of the group's last tile remains.
        return i + 1, state, _store(out, rows, first)

    sinks = arguments.sinks
    if sinks is not None:
        sinks = jnp.tile(jnp.pad(sinks, ((0, 0), (0, spare))), (sequences, 1))
    out = jnp.zeros_like(queries)
    init = (jnp.uint32(0), _Softmax.initial(shape), out)
    out = lax.while_loop(lambda carry: carry[0] < count, step, init)[2][:, :, :group]
    target = jnp.where(tiles > 0, tokens, num_tokens)  # an index past the end is dropped
    return jnp.zeros_like(arguments.q).at[target].set(out, mode="drop")


def _prefill(arguments: _Arguments, out: jax.Array) -> jax.Array:  # [T, K, G, D]
    """Fills the rows of sequences that have several query tokens."""
    num_tokens, kv_heads, group, head_dim = out.shape
    key_tile = arguments.tile_size(PREFILL_KEY_TILE)
    tables = arguments.safe_tables(key_tile)
    query_tile = min(PREFILL_QUERY_TILE, num_tokens)
    tiles = jnp.where(arguments.query_lens > 1, -(-arguments.query_lens // query_tile), 0)
    sinks = None if arguments.sinks is None else jnp.tile(arguments.sinks, (1, query_tile))
    owner, nth, count = _work_items(tiles, num_tokens // query_tile + tiles.shape[0])
    starts, ends = arguments.query_starts[:-1][owner], arguments.query_starts[1:][owner]
    first = starts + nth * query_tile
    stop = jnp.minimum(first + query_tile, ends)
    context = arguments.context_lens[owner]
    offset = context - ends  # added to a token's index in the batch, gives its position
    items = jnp.stack(
        [
            owner,
            arguments.first_key(starts + offset),
            context,
            jnp.minimum(first, num_tokens - query_tile),  # the slice must stay inside the batch
            first,
            stop,
            offset,
            arguments.first_key(first + offset) // key_tile,
            (stop - 1 + offset) // key_tile + 1,
        ],
        axis=1,
    )

    def step(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        i, out = carry
        s, begin, end, base, first, stop, offset, first_tile, end_tile = _unpack(items, i)
        tokens = base + jnp.arange(query_tile)
        owned = (tokens >= first) & (tokens < stop)
        # Rows of other sequences see no key, and their results are not stored.
        positions = jnp.repeat(jnp.where(owned, tokens + offset, -1), group)[None]  # [1, tile * G]
        query = _rows(arguments.q, base, query_tile)  # [tile, K, G, D]
        query = query.transpose(1, 0, 2, 3).reshape(kv_heads, query_tile * group, head_dim)
        state = lax.fori_loop(
            first_tile,
            end_tile,
            lambda n, state: state.combine(
                _attend_tile(
                    arguments,
                    tables,
                    query,
                    positions,
                    _KeyTile(s, *(x[None] for x in (n * key_tile, begin, end))),
                    state.maximum,
                    tile_size=key_tile,
                )
            ),
            _Softmax.initial(query.shape),
        )
        rows = state.result(sinks).reshape(kv_heads, query_tile, group, head_dim)
        rows = rows.transpose(1, 0, 2, 3)
        rows = jnp.where(owned[:, None, None, None], rows, _rows(out, base, query_tile))
        return i + 1, _store(out, rows, base)

    return lax.while_loop(lambda carry: carry[0] < count, step, (jnp.uint32(0), out))[1]


def _attend_tile(
    arguments: _Arguments,
    tables: jax.Array,  # [S, W']
    query: jax.Array,  # [N * K, R, D]
    positions: jax.Array,  # [N * K or 1, R or 1]
    tile: _KeyTile,
    maximum: jax.Array,  # [N * K, R]
    *,
    tile_size: int,
) -> _Softmax:
    """The softmax state of one key tile alone, with a maximum that is at least `maximum`."""
    keys, values = _gather(arguments, tables, tile, tile_size)
    scores = jnp.einsum("krd,kcd->krc", query, keys)
    if arguments.softcap is not None:
        scores = arguments.softcap * jnp.tanh(scores / arguments.softcap)
    key_positions = tile.start[:, None] + jnp.arange(tile_size)  # [N, tile]
    key_positions = jnp.repeat(key_positions, len(query) // len(key_positions), axis=0)[:, None]
    seen = key_positions <= positions[..., None]  # [N * K, R or 1, tile]
    if arguments.window is not None:
        seen &= key_positions > positions[..., None] - arguments.window
    scores = jnp.where(seen, scores, _MASKED)
    maximum = jnp.maximum(maximum, scores.max(axis=-1))
    # In a row that has seen no key yet, all weights are 1; the first key that it sees decays their
    # sum to 0.
    weights = jnp.exp(scores - maximum[..., None])
    return _Softmax(maximum, _sum_last(weights), _weighted_values(weights, values))


def _weighted_values(weights: jax.Array, values: jax.Array) -> jax.Array:  # [N * K, R, D]
    """The product of weights [N * K, R, tile] and values [N * K, tile, D], summed in the same
    order for every R."""
    parts = -(-weights.shape[1] // MAX_PRODUCT_ROWS)
    products = [
        jnp.einsum("krc,kcd->krd", part, values) for part in jnp.array_split(weights, parts, axis=1)
    ]
    return jnp.concatenate(products, axis=1)


def _sum_last(x: jax.Array) -> jax.Array:
    """x.sum(axis=-1), in an order that does not depend on the sizes of the other dimensions.

    The order of XLA's own reduction does: fewer than 8 rows are summed in another order.
    """
    while x.shape[-1] % 2 == 0:
        first, second = jnp.split(x, 2, axis=-1)
        x = first + second
    return functools.reduce(jnp.add, (x[..., i] for i in range(x.shape[-1])))


def _gather(
    arguments: _Arguments, tables: jax.Array, tile: _KeyTile, tile_size: int
) -> tuple[jax.Array, jax.Array]:
    """The keys and the values of a key tile, each [N * K, tile, D] float32.

    Values that no query of the sequence sees are zeros, because a weight of 0 times NaN is NaN.
    Unseen keys may hold anything, as their scores are masked.
    """
    num_blocks, kv_heads, block_size, head_dim = arguments.k_pages.shape
    first = lax.shift_right_logical(tile.start, jnp.int32(block_size.bit_length() - 1))

    def entries(n: int) -> jax.Array:  # [1, pages]
        where = (_index(tile.first_sequence + n), _index(first[n]))
        return lax.dynamic_slice(tables, where, (1, tile_size // block_size))

    pages = jnp.concatenate([entries(n) for n in range(len(first))])  # [N, pages]
    rows = pages[:, None] * kv_heads + jnp.arange(kv_heads)[:, None]  # [N, K, pages]

    def gather(pool: jax.Array) -> jax.Array:  # [N, K, pages, P * D]
        long_rows = pool.reshape(num_blocks * kv_heads, block_size * head_dim)
        return long_rows.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False)

    # Marks the elements of each page's row that lie between tile.begin and tile.end.
    element = jnp.arange(tile_size * head_dim).reshape(-1, block_size * head_dim)
    lengths = (tile.end - tile.start)[:, None, None, None]
    seen = element < lengths * head_dim
    if arguments.window is not None:
        seen &= element >= (tile.begin - tile.start)[:, None, None, None] * head_dim
    # The barrier keeps XLA from fusing the gather with what follows. XLA:CPU copies long rows with
    # vector instructions, but would copy element by element if it saw the short last axis.
    keys, values = lax.optimization_barrier(
        (gather(arguments.k_pages), jnp.where(seen, gather(arguments.v_pages), 0))
    )
    shape = (-1, tile_size, head_dim)
    return keys.reshape(shape).astype(jnp.float32), values.reshape(shape).astype(jnp.float32)


def _work_items(counts: jax.Array, limit: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Flattens the work items of all owners (sequences or groups) into one list.

    counts: [S] items of each owner.

    Returns the owner of each item, the item's index among those of its owner, both [limit], and
    the number of items; entries from that number on are meaningless.
    """
    ends = jnp.cumsum(counts)
    i = jnp.arange(limit)
    owner = jnp.minimum(jnp.sum(ends <= i[:, None], axis=1), counts.shape[0] - 1)
    return owner, i - (ends - counts)[owner], ends[-1].astype(jnp.uint32)


def _index(i: jax.Array) -> jax.Array:
    """An index as an unsigned number, for which jax adds no code that handles negative values."""
    return i.astype(jnp.uint32)


def _rows(array: jax.Array, start: jax.Array, size: int) -> jax.Array:
    """array[start : start + size]"""
    zeros = [jnp.uint32(0)] * (array.ndim - 1)
    return lax.dynamic_slice(array, (_index(start), *zeros), (size, *array.shape[1:]))


def _row(array: jax.Array, i: jax.Array) -> jax.Array:
    """array[i]"""
    return lax.squeeze(_rows(array, i, 1), (0,))


def _unpack(items: jax.Array, i: jax.Array) -> list[jax.Array]:
    """The F fields of item i of [N, F], each a scalar."""
    row = _row(items, i)
    return [lax.squeeze(lax.slice(row, (f,), (f + 1,)), (0,)) for f in range(row.shape[0])]


def _store(array: jax.Array, rows: jax.Array, start: jax.Array) -> jax.Array:
    """array with array[start : start + n] = rows"""
    zeros = [jnp.uint32(0)] * (array.ndim - 1)
    return lax.dynamic_update_slice(array, rows, (_index(start), *zeros))


def as_stored(x: jax.Array, dtype: jnp.dtype, scale: jax.Array | float | None) -> jax.Array:
    """Converts keys or values [T, K, D] to the type of a pool; 8-bit types saturate."""
    if scale is not None:
        factor = jnp.broadcast_to(jnp.asarray(scale, jnp.float32), (x.shape[1],))
        x = x.astype(jnp.float32) / factor[:, None]
    if dtype.itemsize == 1:  # a cast of a number beyond the range gives NaN
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
