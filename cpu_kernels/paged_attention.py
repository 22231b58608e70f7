"""Paged attention in float32 that reads each page in place, once for a group of query heads.

The softmax is online (Milakov and Gimelshein 2018, algorithm 3) over key tiles that start at
multiples of their size, and every sum has a fixed order. A token's bits therefore depend on its own
sequence alone, whether it is a decode or part of a prefill.
"""

from __future__ import annotations

import numpy as np
from numba import carray, cfunc, njit

from cpu_kernels import ffi
from cpu_kernels.llvm_intrinsics import COMPILED, float_from_bits, floats
from cpu_kernels.matmul import clear
from cpu_kernels.microkernels import multiply, pack, tile_count
from cpu_kernels.tiles import GRAIN, TILE

_COLUMNS, _TILE_ROWS = TILE.columns, TILE.rows

# The compiler may reorder sums to vectorise them; NaN and infinity keep their meaning.
_FAST = {"reassoc", "contract", "nsz"}
_KEY_TILE = 64  # keys per step of the online softmax, a multiple of a tile's columns
_PREFETCH_LINES = 8  # for every eight floats of GRAIN keys: all of their lines
_QUERY_TILE = 32  # query tokens of one sequence that share a pass over its keys
_MASKED = np.float32(-1e30)  # finite, and less than any score: the maximum before the first key
_UNSEEN = np.float32(-np.inf)

_ONE, _LOWEST = np.float32(1), np.float32(-87)
_LOG2E, _HALF = np.float32(1.44269504), np.float32(0.5)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_P0, _P1, _P2 = (
    np.float32(1.9875691500e-4),
    np.float32(1.3981999507e-3),
    np.float32(8.3334519073e-3),
)
_P3, _P4, _P5 = (
    np.float32(4.1665795894e-2),
    np.float32(1.6666665459e-1),
    np.float32(5.0000001201e-1),
)


@njit(fastmath={"contract"}, **COMPILED)
def _exp(x: float) -> float:
    """e ** x in float32 for x <= 0, and 0 for x < -87.

    The polynomial is that of expf in the Cephes library. There is no branch, so that loops over it
    are vectorised.
    """
    y = _LOWEST if x < _LOWEST else x
    n = np.int32(y * _LOG2E - _HALF)
    r = y - np.float32(n) * _LN2_HIGH - np.float32(n) * _LN2_LOW
    p = ((((_P0 * r + _P1) * r + _P2) * r + _P3) * r + _P4) * r + _P5
    power = (p * r * r + r + _ONE) * float_from_bits(np.int32((n + 127) << 23))
    return np.float32(0) if x < _LOWEST else power


@njit(fastmath=_FAST | {"nnan"}, **COMPILED)
def _max_score(scores: np.ndarray) -> float:
    highest = _MASKED
    for j in range(_KEY_TILE):
        highest = max(highest, scores[j])
    return highest


@njit(fastmath=_FAST, **COMPILED)
def _scores_to_weights(
    scores_address: int, begin: int, end: int, softcap: float, maximum: float
) -> tuple[float, float]:
    """Turns a row's scores [_KEY_TILE] into softmax weights, in place; 0 outside begin : end.

    Returns the row's new maximum, which is at least `maximum`, and the sum of the weights.
    """
    scores = floats(scores_address, _KEY_TILE)
    if softcap > 0:
        for j in range(begin, min(end, _KEY_TILE)):
            scores[j] = softcap * np.tanh(scores[j] / softcap)
    for j in range(min(begin, _KEY_TILE)):
        scores[j] = _UNSEEN
    for j in range(max(end, 0), _KEY_TILE):
        scores[j] = _UNSEEN
    maximum = max(maximum, _max_score(scores))
    total = np.float32(0)
    for j in range(_KEY_TILE):
        scores[j] = _exp(scores[j] - maximum)
        total += scores[j]
    return maximum, total


@njit(fastmath=_FAST, **COMPILED)
def _scale(row_address: int, factor: float, size: int) -> None:
    row = floats(row_address, size)
    for d in range(size):
        row[d] *= factor


@njit(**COMPILED)
def _pool_offset(pool: tuple[int, ...], table: np.ndarray, head: int, key: int) -> int:
    """The offset in bytes of a sequence's key in a pool [B, K, P, D]."""
    _, heads, block_size, size = pool
    block = key // block_size
    return ((table[block] * heads + head) * block_size + key - block * block_size) * size * 4


@njit(**COMPILED)
def _copy_rows(source: int, row_bytes: int, target: int, target_stride: int, rows: int) -> None:
    """Copies contiguous rows of floats to rows that begin target_stride bytes apart."""
    if target_stride == row_bytes:
        row_bytes, target_stride, rows = row_bytes * rows, 0, min(rows, 1)
    for r in range(rows):
        row = floats(source + r * row_bytes, row_bytes // 4)
        copy = floats(target + r * target_stride, row_bytes // 4)
        for i in range(len(row)):
            copy[i] = row[i]


@njit(**COMPILED)
def _attend_rows(
    q_address: int,  # [R, D], in the order of their positions
    positions: np.ndarray,  # [R]
    rows: int,
    keys_address: int,  # [B, K, P, D]
    values_address: int,  # [B, K, P, D]
    pool: tuple[int, ...],
    head: int,
    table: np.ndarray,  # [W]
    window: int,
    softcap: float,
    maxima: np.ndarray,  # [R]; this and the next two are the state of the online softmax
    totals: np.ndarray,  # [R]
    sums_address: int,  # [R, D]
    sums_stride: int,  # bytes from a row of the sums, or of the tile's values, to the next
    columns_address: int,  # [_KEY_TILE / C, D, C], the packed keys of a tile; C is _COLUMNS
    tile_values_address: int,  # [_KEY_TILE, D], the values of a tile
    weights: np.ndarray,  # [_TILE_ROWS, _KEY_TILE]
) -> None:
    """Attention of the rows to one kv head: for each key tile, for each tile of rows.

    As in FlashAttention-2 (Dao 2023, algorithm 1), but a key tile is packed once for all rows.
    """
    size = pool[3]
    row_bytes = 4 * size
    weights_address, weights_stride = weights.ctypes.data, weights.strides[0]
    lowest, highest = max(0, positions[0] - window + 1), positions[rows - 1]
    for start in range(lowest // _KEY_TILE * _KEY_TILE, highest + 1, _KEY_TILE):
        # What is read next is prefetched: the next tile, or the first tile of the next head.
        next_start, next_head = start + _KEY_TILE, head
        if next_start > highest:
            next_start = lowest // _KEY_TILE * _KEY_TILE
            next_head = min(head + 1, pool[1] - 1)
        first_key = max(start, lowest // GRAIN * GRAIN)
        for key in range(first_key, min(start + _KEY_TILE, highest + 1), GRAIN):
            offset, j = _pool_offset(pool, table, head, key), key - start
            next_key = max(lowest, min(next_start + j, highest))
            pack(
                keys_address + offset,
                row_bytes,
                size,
                columns_address + j // _COLUMNS * _COLUMNS * row_bytes + 4 * (j % _COLUMNS),
                keys_address + _pool_offset(pool, table, next_head, next_key),
                _PREFETCH_LINES,
            )
            _copy_rows(
                values_address + offset,
                row_bytes,
                tile_values_address + j * sums_stride,
                sums_stride,
                min(GRAIN, highest + 1 - key),
            )
        row = 0
        for tiles_left in range(tile_count(rows), 0, -1):
            tile_rows = (rows - row + tiles_left - 1) // tiles_left
            # These rows see begin : end of this key tile. A row that sees only part of that has
            # weights of 0 for the rest, which add nothing as long as the values are finite.
            begin = max(0, positions[row] - window + 1 - start)
            end = min(_KEY_TILE, positions[row + tile_rows - 1] + 1 - start)
            if begin >= end:
                row += tile_rows
                continue
            for j in range(begin // _COLUMNS * _COLUMNS, end, _COLUMNS):
                next_key = max(lowest, min(next_start + j, highest))
                multiply(
                    tile_rows,
                    q_address + row_bytes * row,
                    row_bytes,
                    columns_address + j * row_bytes,
                    4 * _COLUMNS,
                    size,
                    weights_address + 4 * j,
                    weights_stride,
                    0,
                    values_address + _pool_offset(pool, table, next_head, next_key),
                    _PREFETCH_LINES * (_COLUMNS // GRAIN) if row == 0 else 0,
                )
            for r in range(row, row + tile_rows):
                maximum, total = _scores_to_weights(
                    weights_address + weights_stride * (r - row),
                    max(0, positions[r] - window + 1 - start),
                    positions[r] + 1 - start,
                    softcap,
                    maxima[r],
                )
                decay = _exp(maxima[r] - maximum)
                maxima[r], totals[r] = maximum, totals[r] * decay + total
                if decay != 1:
                    _scale(sums_address + sums_stride * r, decay, size)
            for d in range(0, size, _COLUMNS):
                multiply(
                    tile_rows,
                    weights_address + 4 * begin,
                    weights_stride,
                    tile_values_address + begin * sums_stride + 4 * d,
                    sums_stride,
                    end - begin,
                    sums_address + sums_stride * row + 4 * d,
                    sums_stride,
                    1,
                    0,
                    0,
                )
            row += tile_rows


@njit(**COMPILED)
def _attend_part(
    q: np.ndarray,  # [T, K, G, D], scaled
    keys: np.ndarray,  # [B, K, P, D]
    values: np.ndarray,  # [B, K, P, D]
    tables: np.ndarray,  # [S, W]
    context_lens: np.ndarray,  # [S]
    query_starts: np.ndarray,  # [S + 1]
    sinks: np.ndarray,  # [K, G], or [0, 0]
    window: int,
    softcap: float,
    out: np.ndarray,  # [T, K, G, D]
    part: int,
    parts: int,
) -> None:
    """Computes the (query tile, kv head) pairs that belong to this part."""
    _, kv_heads, group, size = q.shape
    if part == 0:
        used, row_bytes = query_starts[len(query_starts) - 1], 4 * kv_heads * group * size
        clear(out.ctypes.data + row_bytes * used, row_bytes, len(out) - used, row_bytes // 4)
    total_cost = 0  # of one kv head
    for s in range(len(context_lens)):
        total_cost += (query_starts[s + 1] - query_starts[s]) * max(context_lens[s], 1)
    max_rows = _QUERY_TILE * group
    padded = (size + _COLUMNS - 1) // _COLUMNS * _COLUMNS  # of values and sums, to whole tiles
    tile_q, sums = np.empty((max_rows, size), np.float32), np.empty((max_rows, padded), np.float32)
    maxima, totals = np.empty(max_rows, np.float32), np.empty(max_rows, np.float32)
    positions = np.empty(max_rows, np.int64)
    columns = np.empty((_KEY_TILE // _COLUMNS, size, _COLUMNS), np.float32)
    tile_values = np.zeros((_KEY_TILE, padded), np.float32)
    weights = np.empty((_TILE_ROWS, _KEY_TILE), np.float32)
    cost_before = 0
    for s in range(len(context_lens)):
        for first in range(query_starts[s], query_starts[s + 1], _QUERY_TILE):
            tokens = min(_QUERY_TILE, query_starts[s + 1] - first)
            rows = tokens * group
            for k in range(kv_heads):
                # All work in a row is cut into parts of equal cost; a pair belongs to the part
                # that holds its middle.
                cost = tokens * max(context_lens[s], 1)
                twice_middle = 2 * cost_before + cost
                cost_before += cost
                if twice_middle * parts // (2 * total_cost * kv_heads) != part:
                    continue
                for r in range(rows):
                    t, g = r // group, r % group
                    for d in range(size):
                        tile_q[r, d] = q[first + t, k, g, d]
                    positions[r] = context_lens[s] - query_starts[s + 1] + first + t
                    maxima[r], totals[r] = _MASKED, 0
                    if len(sinks):
                        maxima[r], totals[r] = sinks[k, g], 1
                clear(sums.ctypes.data, 4 * padded, rows, padded)
                _attend_rows(
                    tile_q.ctypes.data,
                    positions,
                    rows,
                    keys.ctypes.data,
                    values.ctypes.data,
                    keys.shape,
                    k,
                    tables[s],
                    window,
                    softcap,
                    maxima,
                    totals,
                    sums.ctypes.data,
                    4 * padded,
                    columns.ctypes.data,
                    tile_values.ctypes.data,
                    weights,
                )
                for r in range(rows):
                    t, g = first + r // group, r % group
                    for d in range(size):
                        out[t, k, g, d] = sums[r, d] / totals[r]


@cfunc(ffi.PART, **COMPILED)
def attention_part(address: int, part: int, parts: int) -> None:
    """One part of a call: q [T, K, G, D], k_pages, v_pages, block_tables, context_lens,
    query_starts, sinks, window [1], softcap [1] -> [T, K, G, D]."""
    frame = ffi.read_frame(address)
    q, q_shape = ffi.argument(frame, 0)
    keys, pool_shape = ffi.argument(frame, 1)
    values, _ = ffi.argument(frame, 2)
    tables, tables_shape = ffi.argument(frame, 3)
    context_lens, _ = ffi.argument(frame, 4)
    query_starts, _ = ffi.argument(frame, 5)
    sinks, sinks_shape = ffi.argument(frame, 6)
    window, _ = ffi.argument(frame, 7)
    softcap, _ = ffi.argument(frame, 8)
    out, _ = ffi.result(frame, 0)
    pool = (pool_shape[0], pool_shape[1], pool_shape[2], pool_shape[3])
    shape = (q_shape[0], q_shape[1], q_shape[2], q_shape[3])
    _attend_part(
        carray(q, shape, np.float32),
        carray(keys, pool, np.float32),
        carray(values, pool, np.float32),
        carray(tables, (tables_shape[0], tables_shape[1]), np.int32),
        carray(context_lens, tables_shape[0], np.int32),
        carray(query_starts, tables_shape[0] + 1, np.int32),
        carray(sinks, (sinks_shape[0], sinks_shape[1]), np.float32),
        carray(window, 1, np.int32)[0],
        carray(softcap, 1, np.float32)[0],
        carray(out, shape, np.float32),
        part,
        parts,
    )
