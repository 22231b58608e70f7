"""Paged attention in float32 that reads each page where it lies, once for a group of query heads.

The softmax is online (Milakov and Gimelshein 2018, algorithm 3) over pieces of context that start
at multiples of their size, and every sum has an order of its own: a token's bits depend on its own
sequence alone, decode or prefill.
"""

from __future__ import annotations

import numpy as np
from numba import carray, cfunc, njit

from cpu_kernels import ffi
from cpu_kernels.machine import COMPILED, float_of_bits, floats
from cpu_kernels.tiles import LANES, TALLEST, WIDE, multiply, pack, tiles_of

# Sums may be vectorised; NaN and infinity stay what they are.
_FAST = {"reassoc", "contract", "nsz"}
_PIECE = 64  # keys of context that one turn takes
_QUERY_TOKENS = 32  # query tokens of one sequence that take it together
_LEAST = np.float32(-1e30)  # finite, and less than any score: the top of none
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
    """e ** x in float32 for x <= 0, and 0 for less than -87 (the polynomial is that of Cephes'
    expf), to be vectorised."""
    y = _LOWEST if x < _LOWEST else x
    n = np.int32(y * _LOG2E - _HALF)
    r = y - np.float32(n) * _LN2_HIGH - np.float32(n) * _LN2_LOW
    p = ((((_P0 * r + _P1) * r + _P2) * r + _P3) * r + _P4) * r + _P5
    power = (p * r * r + r + _ONE) * float_of_bits(np.int32((n + 127) << 23))
    return np.float32(0) if x < _LOWEST else power


@njit(fastmath=_FAST | {"nnan"}, **COMPILED)
def _highest(scores: np.ndarray) -> float:
    highest = _LEAST
    for j in range(_PIECE):
        highest = max(highest, scores[j])
    return highest


@njit(fastmath=_FAST, **COMPILED)
def _weigh(scores_at: int, begin: int, end: int, softcap: float, top: float) -> tuple[float, float]:
    """Scores [_PIECE] become weights, 0 but in begin : end; the new top, and the weights' sum."""
    scores = floats(scores_at, _PIECE)
    if softcap > 0:
        for j in range(begin, min(end, _PIECE)):
            scores[j] = softcap * np.tanh(scores[j] / softcap)
    for j in range(min(begin, _PIECE)):
        scores[j] = _UNSEEN
    for j in range(max(end, 0), _PIECE):
        scores[j] = _UNSEEN
    top = max(top, _highest(scores))
    total = np.float32(0)
    for j in range(_PIECE):
        scores[j] = _exp(scores[j] - top)
        total += scores[j]
    return top, total


@njit(fastmath=_FAST, **COMPILED)
def _scale(row_at: int, factor: float, size: int) -> None:
    row = floats(row_at, size)
    for d in range(size):
        row[d] *= factor


@njit(**COMPILED)
def _place(pool: tuple[int, ...], table: np.ndarray, head: int, key: int) -> int:
    """Where in a pool [B, K, P, D] a key lies: bytes from its start."""
    _, heads, block_size, size = pool
    block = key // block_size
    return ((table[block] * heads + head) * block_size + key - block * block_size) * size * 4


@njit(**COMPILED)
def _copy(source: int, to: int, n: int) -> None:
    """n floats."""
    here, there = floats(source, n), floats(to, n)
    for i in range(n):
        there[i] = here[i]


@njit(**COMPILED)
def _attend(
    q_at: int,  # [R, D], in the order of their positions
    positions: np.ndarray,  # [R]
    rows: int,
    keys_at: int,  # [B, K, P, D]
    values_at: int,  # [B, K, P, D]
    pool: tuple[int, ...],
    head: int,
    table: np.ndarray,  # [W]
    window: int,
    softcap: float,
    tops: np.ndarray,  # [R], and the next two: the softmax so far
    totals: np.ndarray,  # [R]
    sums_at: int,  # [R, D]
    columns_at: int,  # [_PIECE / 16, D, 16], the piece's keys
    near_at: int,  # [_PIECE, D], its values in one piece of memory
    weights: np.ndarray,  # [6, _PIECE]
) -> None:
    """What the rows see with one kv head: piece by piece, a tile of rows at a time.

    As in FlashAttention-2 (Dao 2023, algorithm 1), with pieces that are packed once for all rows.
    """
    size = pool[3]
    row_bytes = 4 * size  # bytes of a row
    weights_at, step = weights.ctypes.data, weights.strides[0]
    lowest, highest = max(0, positions[0] - window + 1), positions[rows - 1]
    for start in range(lowest // _PIECE * _PIECE, highest + 1, _PIECE):
        # What comes next is prefetched: a piece, or the first one of the next head, if any.
        then, of = start + _PIECE, head
        if then > highest:
            then, of = lowest // _PIECE * _PIECE, min(head + 1, pool[1] - 1)
        for key in range(max(start, lowest // WIDE * WIDE), min(start + _PIECE, highest + 1), WIDE):
            place, j = _place(pool, table, head, key), key - start
            ahead = _place(pool, table, of, max(lowest, min(then + j, highest)))
            pack(
                keys_at + place, row_bytes, size, columns_at + j * row_bytes, keys_at + ahead, LANES
            )
            _copy(values_at + place, near_at + j * row_bytes, min(WIDE, highest + 1 - key) * size)
        row = 0
        for left in range(tiles_of(rows), 0, -1):
            tall = (rows - row + left - 1) // left
            # Of this piece, begin : end is what the tile sees. A row that doesn't see all of it has
            # weights of 0 there, for values that are finite.
            begin = max(0, positions[row] - window + 1 - start)
            end = min(_PIECE, positions[row + tall - 1] + 1 - start)
            if begin >= end:
                row += tall
                continue
            for j in range(begin // WIDE * WIDE, end, WIDE):
                ahead = values_at + _place(pool, table, of, max(lowest, min(then + j, highest)))
                multiply(
                    tall,
                    q_at + row_bytes * row,
                    row_bytes,
                    columns_at + j * row_bytes,
                    4 * WIDE,
                    size,
                    weights_at + 4 * j,
                    step,
                    0,
                    ahead,
                    LANES if row == 0 else 0,
                )
            for r in range(row, row + tall):
                top, total = _weigh(
                    weights_at + step * (r - row),
                    max(0, positions[r] - window + 1 - start),
                    positions[r] + 1 - start,
                    softcap,
                    tops[r],
                )
                decay = _exp(tops[r] - top)
                tops[r], totals[r] = top, totals[r] * decay + total
                if decay != 1:
                    _scale(sums_at + row_bytes * r, decay, size)
            for d in range(0, size, WIDE):
                multiply(
                    tall,
                    weights_at + 4 * begin,
                    step,
                    near_at + begin * row_bytes + 4 * d,
                    row_bytes,
                    end - begin,
                    sums_at + row_bytes * row + 4 * d,
                    row_bytes,
                    1,
                    0,
                    0,
                )
            row += tall


@njit(**COMPILED)
def _attend_part(
    q: np.ndarray,  # [T, K, G, D], scaled
    keys: np.ndarray,  # [B, K, P, D]
    values: np.ndarray,  # [B, K, P, D]
    tables: np.ndarray,  # [S, W]
    lens: np.ndarray,  # [S]
    starts: np.ndarray,  # [S + 1]
    sinks: np.ndarray,  # [K, G], or [0, 0]
    window: int,
    softcap: float,
    out: np.ndarray,  # [T, K, G, D]
    part: int,
    parts: int,
) -> None:
    _, kv_heads, group, size = q.shape
    if part == 0:
        out[starts[-1] :] = 0
    whole = 0
    for s in range(len(lens)):
        whole += (starts[s + 1] - starts[s]) * max(lens[s], 1)
    tall = _QUERY_TOKENS * group
    own_q, sums = np.empty((tall, size), np.float32), np.empty((tall, size), np.float32)
    tops, totals = np.empty(tall, np.float32), np.empty(tall, np.float32)
    positions = np.empty(tall, np.int64)
    columns = np.empty((_PIECE // WIDE, size, WIDE), np.float32)
    near = np.empty((_PIECE, size), np.float32)
    weights = np.empty((TALLEST, _PIECE), np.float32)
    before = 0
    for s in range(len(lens)):
        for first in range(starts[s], starts[s + 1], _QUERY_TOKENS):
            tokens = min(_QUERY_TOKENS, starts[s + 1] - first)
            rows = tokens * group
            for k in range(kv_heads):
                # Whoever's share of all work the middle of this lies in does it.
                cost = tokens * max(lens[s], 1)
                middle = 2 * before + cost
                before += cost
                if middle * parts // (2 * whole * kv_heads) != part:
                    continue
                for r in range(rows):
                    t, g = r // group, r % group
                    own_q[r] = q[first + t, k, g]
                    positions[r] = lens[s] - starts[s + 1] + first + t
                    tops[r], totals[r] = _LEAST, 0
                    if len(sinks):
                        tops[r], totals[r] = sinks[k, g], 1
                sums[:rows] = 0
                _attend(
                    own_q.ctypes.data,
                    positions,
                    rows,
                    keys.ctypes.data,
                    values.ctypes.data,
                    keys.shape,
                    k,
                    tables[s],
                    window,
                    softcap,
                    tops,
                    totals,
                    sums.ctypes.data,
                    columns.ctypes.data,
                    near.ctypes.data,
                    weights,
                )
                for r in range(rows):
                    t, g = first + r // group, r % group
                    for d in range(size):
                        out[t, k, g, d] = sums[r, d] / totals[r]


@cfunc(ffi.PART, **COMPILED)
def attend(address: int, part: int, parts: int) -> None:
    """A part of a call: q [T, K, G, D], k_pages, v_pages, block_tables, context_lens, query_starts,
    sinks, window [1], softcap [1] -> [T, K, G, D]."""
    frame = ffi.opened(address)
    q, q_shape = ffi.argument(frame, 0)
    keys, pages = ffi.argument(frame, 1)
    values, _ = ffi.argument(frame, 2)
    tables, rows = ffi.argument(frame, 3)
    lens, _ = ffi.argument(frame, 4)
    starts, _ = ffi.argument(frame, 5)
    sinks, logits = ffi.argument(frame, 6)
    window, _ = ffi.argument(frame, 7)
    softcap, _ = ffi.argument(frame, 8)
    out, _ = ffi.result(frame, 0)
    pool = (pages[0], pages[1], pages[2], pages[3])
    shape = (q_shape[0], q_shape[1], q_shape[2], q_shape[3])
    _attend_part(
        carray(q, shape, np.float32),
        carray(keys, pool, np.float32),
        carray(values, pool, np.float32),
        carray(tables, (rows[0], rows[1]), np.int32),
        carray(lens, rows[0], np.int32),
        carray(starts, rows[0] + 1, np.int32),
        carray(sinks, (logits[0], logits[1]), np.float32),
        carray(window, 1, np.int32)[0],
        carray(softcap, 1, np.float32)[0],
        carray(out, shape, np.float32),
        part,
        parts,
    )
