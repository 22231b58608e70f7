"""Paged attention in Pallas for NVIDIA GPUs, through the Triton backend.

The rows of a program's dot are (tokens x query heads of one kv head), so that a page is read once
for the whole group. The work is a list of tiles, each of which holds some tokens of one sequence;
an empty tile costs one read. The same kernel runs twice. The decode list has the sequences with one
query token, whose contexts are divided among programs by their actual lengths and merged
(flash-decoding, Dao et al. 2023). The prefill list has the other sequences. Scores, softmax
(Milakov and Gimelshein 2018, in base 2) and accumulators are float32.

JAX has announced the end of the Triton backend; only the files `triton_*` depend on it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from pallas_kernels import tuning
from pallas_kernels.triton_cache import check_pool_size
from pallas_kernels.triton_matmul import dot
from pallas_kernels.triton_widen import E4M3_FACTOR, widen_floats
from pallas_kernels.tuning import Blocks, Splits

_Ref = Any  # Pallas has no public type for references
_LOG2E = math.log2(math.e)
_MASKED = -1e30  # finite, so that a row that has seen no key gives exp2(0), not NaN
# Columns of the work list.
_SEQUENCE, _TOKEN, _COUNT, _POSITION, _SPLIT, _SPLITS = range(6)
# Columns of the list of sequences to merge: their first tile, tiles, and token.
_FIRST, _PARTS, _ROW = range(3)


@dataclass(frozen=True, slots=True)
class _Static:
    """The static parameters of a kernel."""

    blocks: Blocks
    group: int
    head_dim: int
    scale: float
    window: int | None
    softcap: float | None
    has_sinks: bool
    stored: jnp.dtype
    decode: bool
    most_splits: int  # of a sequence; 1: the kernel writes no partial results
    interpret: bool

    @property
    def padded_head_dim(self) -> int:
        return pl.next_power_of_2(self.head_dim)

    @property
    def tile(self) -> int:
        """Tokens per tile."""
        return 1 if self.decode else self.blocks.rows // self.group


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
    interpret: bool = False,
    decode_blocks: Blocks | None = None,
    prefill_blocks: Blocks | None = None,
    splits: Splits | None = None,
) -> jax.Array:  # [T, H, D]
    """See `pallas_kernels.paged_attention`; the last four arguments are for tests and the tuner.

    Raises:
        ValueError: a head size above 256, pages that are neither of q's type nor 8-bit, or a pool
            that `check_pool_size` refuses.
    """
    num_tokens, heads, head_dim = q.shape
    _, kv_heads, block_size, _ = k_pages.shape
    rows, width = block_tables.shape
    padded = pl.next_power_of_2(head_dim)
    if padded > 256:
        raise ValueError(f"the triton kernels support head sizes up to 256; got {head_dim}")
    if k_pages.dtype != q.dtype and k_pages.dtype.itemsize != 1:
        raise ValueError(f"pages must be {q.dtype}, as q is, or 8-bit; got {k_pages.dtype}")
    check_pool_size(k_pages)
    group = heads // kv_heads
    splits = splits or tuning.splits(rows, kv_heads, width * block_size)
    types = (head_dim, q.dtype.itemsize, k_pages.dtype.itemsize)
    decode_blocks = decode_blocks or tuning.decode_blocks(*types)
    prefill_blocks = prefill_blocks or tuning.prefill_blocks(*types)
    decode = _Static(
        blocks=_fit_group(decode_blocks, group),
        group=group,
        head_dim=head_dim,
        scale=scale,
        window=window,
        softcap=softcap,
        has_sinks=sinks is not None,
        stored=k_pages.dtype,
        decode=True,
        most_splits=splits.extra + 1,
        interpret=interpret,
    )
    prefill = dataclasses.replace(
        decode, blocks=_fit_group(prefill_blocks, group), decode=False, most_splits=1
    )
    k_pages, k_factor = _as_bits(k_pages, k_scale)
    v_pages, v_factor = _as_bits(v_pages, v_scale)
    inputs = (
        k_pages,
        v_pages,
        block_tables,
        jnp.zeros(heads, jnp.float32) if sinks is None else sinks.astype(jnp.float32),
        k_factor,
        v_factor,
    )
    # A program overwrites its rows of q with the result, so no output buffer needs to be filled
    # first. No program writes the padding rows, which must be zeros.
    real = jnp.arange(num_tokens) < query_starts[-1]
    out = jnp.where(real[:, None, None], q, 0)
    query_lens = query_starts[1:] - query_starts[:-1]
    if max_query_len > 1:
        tiles = _prefill_tiles(prefill.tile, num_tokens, query_lens, context_lens, query_starts)
        (out,) = _call(prefill, tiles, out, inputs)
    lengths = jnp.where(query_lens == 1, context_lens, 0)
    if window is not None:
        lengths = jnp.minimum(lengths, window)
    if not splits.extra:
        parts = jnp.minimum(lengths, 1)
    else:
        # Parts of this size are at most `extra` more than there are sequences.
        size = jnp.maximum(splits.shortest, -(-jnp.sum(lengths) // splits.extra))
        parts = -(-lengths // size)
    tiles = _decode_tiles(parts, rows + splits.extra, context_lens, query_starts)
    out, *partial = _call(decode, tiles, out, inputs)
    if not splits.extra:
        return out
    merged = jnp.stack([jnp.cumsum(parts) - parts, parts, query_starts[:-1]], axis=1)
    return _merge(decode, merged, partial, out)


def _fit_group(blocks: Blocks, group: int) -> Blocks:
    return dataclasses.replace(blocks, rows=max(blocks.rows, pl.next_power_of_2(group)))


def _as_bits(pages: jax.Array, scale: jax.Array | float | None) -> tuple[jax.Array, jax.Array]:
    """Pages as the kernel loads them, and the factor [K] from stored to actual numbers."""
    factor = jnp.broadcast_to(
        jnp.asarray(1.0 if scale is None else scale, jnp.float32), (pages.shape[1],)
    )
    if pages.dtype == jnp.float8_e4m3fn:
        factor *= E4M3_FACTOR
    if pages.dtype.itemsize == 1:
        pages = lax.bitcast_convert_type(pages, jnp.int8)
    return pages, factor


def _prefill_tiles(
    tile: int,
    num_tokens: int,
    query_lens: jax.Array,
    context_lens: jax.Array,
    query_starts: jax.Array,
) -> jax.Array:  # [N, 6]
    """Tiles of the sequences with several query tokens, last tokens first; the rest are empty."""
    counts = jnp.where(query_lens > 1, -(-query_lens // tile), 0)
    ends = jnp.cumsum(counts)
    # The last tile of a sequence may be partly filled; each sequence has at least two tokens.
    size = num_tokens // tile + min(query_lens.shape[0], num_tokens // 2)
    i = jnp.arange(size, dtype=jnp.int32)
    s = jnp.minimum(jnp.sum(ends[None] <= i[:, None], axis=1, dtype=jnp.int32), counts.shape[0] - 1)
    first = query_starts[s] + (i - (ends[s] - counts[s])) * tile
    count = jnp.where(i < ends[-1], jnp.minimum(tile, query_starts[s + 1] - first), 0)
    position = context_lens[s] - query_starts[s + 1] + first
    # The late tiles of a prompt see the most keys, so they start first.
    zeros = jnp.zeros_like(s)
    return jnp.stack([s, first, count, position, zeros, zeros + 1], axis=1)[::-1]


def _decode_tiles(
    parts: jax.Array,  # [S] into which each sequence's context is divided; 0: no decode
    size: int,
    context_lens: jax.Array,
    query_starts: jax.Array,
) -> jax.Array:  # [size, 6]
    """A tile for each part of each decode's context; the rest are empty."""
    ends = jnp.cumsum(parts)
    i = jnp.arange(size, dtype=jnp.int32)
    s = jnp.minimum(jnp.sum(ends[None] <= i[:, None], axis=1, dtype=jnp.int32), len(parts) - 1)
    count = (i < ends[-1]).astype(jnp.int32)
    split = i - (ends - parts)[s]
    return jnp.stack([s, query_starts[s], count, context_lens[s] - 1, split, parts[s]], axis=1)


def _call(
    static: _Static,
    tiles: jax.Array,  # [N, 6]
    q: jax.Array,  # [T, H, D]; rows of the other list may hold results already
    inputs: tuple[jax.Array, ...],
) -> tuple[jax.Array, ...]:
    """q with the rows of this list replaced by results. If contexts may be divided, also each
    tile's maxima and totals [N, K, R] and values [N, K, R, D]; a row in parts keeps its q."""
    num_tiles, head_dim, kv_heads = len(tiles), q.shape[2], inputs[0].shape[1]
    shapes = [jax.ShapeDtypeStruct(q.shape, q.dtype)]
    if static.most_splits > 1:
        rows = (num_tiles, kv_heads, static.blocks.rows)
        shapes += [
            jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (rows, rows, (*rows, head_dim))
        ]
    results: tuple[jax.Array, ...] = pl.pallas_call(
        functools.partial(_attention_kernel, static=static),
        grid=(kv_heads, num_tiles),
        out_shape=tuple(shapes),
        in_specs=[pl.no_block_spec] * (2 + len(inputs)),
        out_specs=(pl.no_block_spec,) * len(shapes),
        input_output_aliases={1: 0},
        interpret=static.interpret,
        compiler_params=plt.CompilerParams(
            num_warps=static.blocks.num_warps, num_stages=static.blocks.num_stages
        ),
        name="paged_decode" if static.decode else "paged_prefill",
    )(tiles, q, *inputs)
    return results


def _merge(
    static: _Static,
    sequences: jax.Array,  # [S, 3]
    partial: list[jax.Array],  # maxima, totals and values, as _call() returns them
    out: jax.Array,  # [T, H, D]
) -> jax.Array:  # [T, H, D], out with the rows in parts replaced by results
    kernel = functools.partial(
        _merge_kernel,
        group=static.group,
        head_dim=static.head_dim,
        most_splits=static.most_splits,
    )
    merged: jax.Array = pl.pallas_call(
        kernel,
        grid=(out.shape[1], len(sequences)),
        out_shape=jax.ShapeDtypeStruct(out.shape, out.dtype),
        in_specs=[pl.no_block_spec] * 5,
        out_specs=pl.no_block_spec,
        input_output_aliases={4: 0},
        interpret=static.interpret,
        compiler_params=plt.CompilerParams(num_warps=4, num_stages=1),
        name="paged_decode_merge",
    )(sequences, *partial, out)
    return merged


def _attention_kernel(
    tiles_ref: _Ref,  # [N, 6]
    q_ref: _Ref,  # [T, H, D]
    k_ref: _Ref,  # [B, K, P, D]
    v_ref: _Ref,  # [B, K, P, D]
    tables_ref: _Ref,  # [S, W]
    sinks_ref: _Ref,  # [H]
    k_factor_ref: _Ref,  # [K]
    v_factor_ref: _Ref,  # [K]
    out_ref: _Ref,  # [T, H, D], aliased with q
    *partial_refs: _Ref,  # none, or maxima and totals [N, K, R] and values [N, K, R, D]
    static: _Static,
) -> None:
    """Attention of one tile to one kv head, over its context or over one part of it."""
    head, tile = pl.program_id(0), pl.program_id(1)
    count, split, splits = (tiles_ref[tile, c] for c in (_COUNT, _SPLIT, _SPLITS))

    @pl.when(count > 0)
    def _() -> None:
        group, num_rows, num_keys = static.group, static.blocks.rows, static.blocks.keys
        s, first, position = (tiles_ref[tile, c] for c in (_SEQUENCE, _TOKEN, _POSITION))
        row = jnp.arange(num_rows)
        token, query_head = row // group, head * group + row % group
        lane = jnp.arange(static.padded_head_dim)
        shape = (num_rows, static.padded_head_dim)
        row_mask = jnp.broadcast_to(
            (token < count)[:, None] & (lane < static.head_dim)[None], shape
        )
        q = plt.load(
            q_ref.at[(first + token)[:, None], query_head[:, None], lane[None]],
            mask=row_mask,
            other=0.0,
        )
        factor = static.scale * k_factor_ref[head]
        if static.stored.itemsize == 1 and q.dtype == jnp.bfloat16:
            # Converting 8-bit numbers to float16 takes a fraction of the instructions that bfloat16
            # takes. Once scaled, q is within the range of float16.
            q = (q.astype(jnp.float32) * static.scale).astype(jnp.float16)
            factor = k_factor_ref[head]
        begin = 0 if static.window is None else jnp.maximum(position - static.window + 1, 0)
        keys = _Keys(k_ref, v_ref, tables_ref, s, head, begin, position + count, q.dtype, static)

        def step(i: jax.Array, carry: tuple[jax.Array, ...], masked: bool) -> tuple[jax.Array, ...]:
            maximum, total, values = carry
            k, v = keys.load(i, masked)
            scores = dot(q, k.T) * factor
            if static.softcap is not None:
                scores = static.softcap * jnp.tanh(scores / static.softcap)
            scores *= _LOG2E
            if masked:
                key = i * num_keys + jnp.arange(num_keys)
                seen = key[None] <= (position + token)[:, None]
                if static.window is not None:
                    seen &= key[None] > (position + token)[:, None] - static.window
                scores = jnp.where(seen, scores, _MASKED)
            new_maximum = jnp.maximum(maximum, jnp.max(scores, axis=1))
            decay = jnp.exp2(maximum - new_maximum)
            weights = jnp.exp2(scores - new_maximum[:, None])
            return (
                new_maximum,
                total * decay + jnp.sum(weights, axis=1),
                values * decay[:, None] + dot(weights.astype(v.dtype), v),
            )

        # Steps start at multiples of their size, so that a sequence's sums do not depend on others.
        low, high = begin // num_keys, pl.cdiv(position + count, num_keys)
        share = pl.cdiv(high - low, splits)
        low = low + split * share
        high = jnp.minimum(low + share, high)
        # In the steps before `full`, every row sees every key, so no mask is needed. With a window
        # there are none, because its beginning needs a mask too.
        full = low if static.window is not None else (position + 1) // num_keys
        full = jnp.clip(full, low, jnp.maximum(low, high))
        carry = (
            jnp.full((num_rows,), _MASKED, jnp.float32),
            jnp.zeros((num_rows,), jnp.float32),
            jnp.zeros(shape, jnp.float32),
        )
        if static.has_sinks:
            sink = plt.load(sinks_ref.at[query_head]) * _LOG2E
            carry = (
                jnp.where(split == 0, sink, _MASKED),
                jnp.where(split == 0, jnp.ones_like(sink), 0.0),
                carry[2],
            )
        carry = lax.fori_loop(low, full, functools.partial(step, masked=False), carry)
        maximum, total, values = lax.fori_loop(
            full, high, functools.partial(step, masked=True), carry
        )
        values *= v_factor_ref[head]

        def store_result() -> None:
            where = out_ref.at[(first + token)[:, None], query_head[:, None], lane[None]]
            plt.store(where, (values / total[:, None]).astype(out_ref.dtype), mask=row_mask)

        if not partial_refs:
            store_result()
            return
        pl.when(splits == 1)(store_result)

        @pl.when(splits > 1)
        def _() -> None:
            maxima_ref, totals_ref, values_ref = partial_refs
            plt.store(maxima_ref.at[tile, head, row], maximum, mask=row < group)
            plt.store(totals_ref.at[tile, head, row], total, mask=row < group)
            where = values_ref.at[tile, head, row[:, None], lane[None]]
            plt.store(where, values, mask=row_mask)


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys and values that a program reads."""

    k_ref: _Ref  # [B, K, P, D]
    v_ref: _Ref  # [B, K, P, D]
    tables_ref: _Ref  # [S, W]
    sequence: jax.Array
    head: jax.Array
    begin: jax.Array | int  # positions from begin to end - 1 are loaded
    end: jax.Array
    dtype: jnp.dtype
    static: _Static

    def load(self, step: jax.Array, masked: bool) -> tuple[jax.Array, jax.Array]:
        """The keys and values of one loop step, each [keys, padded D]; zeros where masked."""
        num_keys, block_size = self.static.blocks.keys, self.k_ref.shape[2]
        key = step * num_keys + jnp.arange(num_keys)
        valid = (key >= self.begin) & (key < self.end)
        entry = self.tables_ref.at[self.sequence, key // block_size]
        page = plt.load(entry, mask=valid, other=0) if masked else plt.load(entry)
        lane = jnp.arange(self.static.padded_head_dim)
        indices = (page[:, None], self.head, (key % block_size)[:, None], lane[None])
        mask = None
        if masked or self.static.head_dim != self.static.padded_head_dim:
            mask = valid[:, None] & (lane < self.static.head_dim)[None]

        def fetch(ref: _Ref) -> jax.Array:
            where = ref.at[indices]
            x = plt.load(where) if mask is None else plt.load(where, mask=mask, other=0)
            return widen_floats(x, self.static.stored, self.dtype, self.static.interpret)

        return fetch(self.k_ref), fetch(self.v_ref)


def _merge_kernel(
    sequences_ref: _Ref,  # [S, 3]
    maxima_ref: _Ref,  # [N, K, R]
    totals_ref: _Ref,  # [N, K, R]
    values_ref: _Ref,  # [N, K, R, D]
    unused_ref: _Ref,  # aliased with the output
    out_ref: _Ref,  # [T, H, D]
    *,
    group: int,
    head_dim: int,
    most_splits: int,
) -> None:
    """Merges the parts of one query head of one sequence."""
    head, sequence = pl.program_id(0), pl.program_id(1)
    at = (head // group, head % group)
    first, splits = sequences_ref[sequence, _FIRST], sequences_ref[sequence, _PARTS]

    @pl.when(splits > 1)
    def _() -> None:
        split = jnp.arange(pl.next_power_of_2(most_splits))
        maxima = plt.load(maxima_ref.at[first + split, *at], mask=split < splits, other=_MASKED)
        totals = plt.load(totals_ref.at[first + split, *at], mask=split < splits, other=0.0)
        maximum = jnp.max(maxima)
        total = jnp.sum(totals * jnp.exp2(maxima - maximum))
        size = min(16, split.shape[0])
        lane = jnp.arange(pl.next_power_of_2(head_dim))

        def step(i: jax.Array, values: jax.Array) -> jax.Array:
            split = i * size + jnp.arange(size)
            active = split < splits
            maxima = plt.load(maxima_ref.at[first + split, *at], mask=active, other=_MASKED)
            part = plt.load(
                values_ref.at[first + split[:, None], *at, lane[None]],
                mask=active[:, None] & (lane < head_dim)[None],
                other=0.0,
            )
            return values + jnp.sum(part * jnp.exp2(maxima - maximum)[:, None], axis=0)

        values = lax.fori_loop(0, pl.cdiv(splits, size), step, jnp.zeros(lane.shape, jnp.float32))
        where = out_ref.at[sequences_ref[sequence, _ROW], head, lane]
        plt.store(where, (values / total).astype(out_ref.dtype), mask=lane < head_dim)
