"""Paged attention in float32 that reads each page where it lies, once for a group of query heads.

The softmax is online (Milakov and Gimelshein 2018, algorithm 3) over pieces of context that start
at multiples of their size, and every sum has an order of its own: a token's bits depend on its own
sequence alone, decode or prefill.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from cpu_kernels import ffi
from cpu_kernels.atomics import COMPILED, float_of_bits, floats, prefetch
from cpu_kernels.dense import FAST, dot_2x4

PIECE = 64  # keys of context that one turn takes
TILE = 32  # query tokens of one sequence that take it together
_AHEAD = 4  # fours of keys that are brought near before they are read
_MASKED = np.float32(-1e30)  # finite: what is less than every score

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
    """e ** x in float32 for x <= 0 (the polynomial is that of Cephes' expf), to be vectorised."""
    x = _LOWEST if x < _LOWEST else x
    n = np.int32(x * _LOG2E - _HALF)
    r = x - np.float32(n) * _LN2_HIGH - np.float32(n) * _LN2_LOW
    p = ((((_P0 * r + _P1) * r + _P2) * r + _P3) * r + _P4) * r + _P5
    return (p * r * r + r + _ONE) * float_of_bits(np.int32((n + 127) << 23))


@njit(fastmath=FAST | {"nnan"}, **COMPILED)
def _highest(scores: np.ndarray) -> float:
    highest = _MASKED
    for j in range(PIECE):
        highest = max(highest, scores[j])
    return highest


@njit(fastmath=FAST, **COMPILED)
def _weigh(scores_at: int, begin: int, end: int, softcap: float, top: float) -> tuple[float, float]:
    """Scores [PIECE] become weights, 0 but in begin : end; the new top, and the weights' sum."""
    scores = floats(scores_at, PIECE)
    if softcap > 0:
        for j in range(begin, min(end, PIECE)):
            scores[j] = softcap * np.tanh(scores[j] / softcap)
    for j in range(PIECE):
        scores[j] = scores[j] if begin <= j < end else _MASKED
    top = max(top, _highest(scores))
    total = np.float32(0)
    for j in range(PIECE):
        weight = _exp(scores[j] - top) if begin <= j < end else np.float32(0)
        scores[j] = weight
        total += weight
    return top, total


@njit(fastmath=FAST, **COMPILED)
def _scale(row_at: int, factor: float, size: int) -> None:
    row = floats(row_at, size)
    for d in range(size):
        row[d] *= factor


@njit(fastmath=FAST, **COMPILED)
def _add_values(
    sums_at: int, weights_at: int, v0: int, v1: int, v2: int, v3: int, size: int
) -> None:
    """Adds four values [D] to four rows of sums in a row, by weights of [4, PIECE]."""
    line, step = 4 * size, 4 * PIECE
    a, b = floats(sums_at, size), floats(sums_at + line, size)
    c, d = floats(sums_at + 2 * line, size), floats(sums_at + 3 * line, size)
    p, q = floats(weights_at, 4), floats(weights_at + step, 4)
    r, s = floats(weights_at + 2 * step, 4), floats(weights_at + 3 * step, 4)
    p0, p1, p2, p3, q0, q1, q2, q3 = p[0], p[1], p[2], p[3], q[0], q[1], q[2], q[3]
    r0, r1, r2, r3, s0, s1, s2, s3 = r[0], r[1], r[2], r[3], s[0], s[1], s[2], s[3]
    x0, x1, x2, x3 = floats(v0, size), floats(v1, size), floats(v2, size), floats(v3, size)
    for i in range(size):
        y0, y1, y2, y3 = x0[i], x1[i], x2[i], x3[i]
        a[i] += p0 * y0 + p1 * y1 + p2 * y2 + p3 * y3
        b[i] += q0 * y0 + q1 * y1 + q2 * y2 + q3 * y3
        c[i] += r0 * y0 + r1 * y1 + r2 * y2 + r3 * y3
        d[i] += s0 * y0 + s1 * y1 + s2 * y2 + s3 * y3


@njit(**COMPILED)
def _find(
    places: np.ndarray, table: np.ndarray, begin: int, end: int, pool: tuple[int, ...], head: int
) -> None:
    """Where in a pool [B, K, P, D] each four keys of begin : end lie: bytes from its start."""
    _, heads, block_size, size = pool
    key = begin // 4 * 4
    while key < end:
        nth = key // block_size
        i = key - nth * block_size
        place = ((table[nth] * heads + head) * block_size + i) * size * 4
        for four in range(key // 4, min((nth + 1) * block_size, end + 3) // 4):
            places[four] = place
            place += 16 * size
        key = (nth + 1) * block_size


@njit(**COMPILED)
def _fetch(address: int, size: int) -> None:
    """Has four rows brought near."""
    for line in range(address, address + 16 * size, 64):
        prefetch(line)


@njit(**COMPILED)
def _attend(
    q_at: int,  # [R, D], R a multiple of four, in the order of their positions
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
    places: np.ndarray,  # [W * P / 4]
    weights: np.ndarray,  # [4, PIECE]
) -> None:
    """What the rows see with one kv head: piece by piece, four rows at a time."""
    size = pool[3]
    line = 4 * size  # bytes of a row
    weights_at = weights.ctypes.data
    lowest, highest = max(0, positions[0] - window + 1), positions[rows - 1]
    _find(places, table, lowest, highest + 1, pool, head)
    for start in range(lowest // PIECE * PIECE, highest + 1, PIECE):
        for row in range(0, rows, 4):
            # Of this piece, the four see begin : end.
            begin = max(0, positions[row] - window + 1 - start)
            end = min(PIECE, positions[row + 3] + 1 - start)
            if begin >= end:
                continue
            q = q_at + line * row
            for j in range(begin // 4 * 4, end, 4):
                four = (start + j) // 4
                if row == 0:
                    _fetch(values_at + places[four], size)
                    _fetch(keys_at + places[min(four + _AHEAD, highest // 4)], size)
                k = keys_at + places[four]
                for r in range(0, 4, 2):
                    x, y = q + line * r, q + line * (r + 1)
                    dots = dot_2x4(x, y, k, k + line, k + 2 * line, k + 3 * line, size)
                    a, b = weights[r], weights[r + 1]
                    a[j], a[j + 1], a[j + 2], a[j + 3] = dots[:4]
                    b[j], b[j + 1], b[j + 2], b[j + 3] = dots[4:]
            for r in range(row, row + 4):
                top, total = _weigh(
                    weights_at + 4 * PIECE * (r - row),
                    max(0, positions[r] - window + 1 - start),
                    positions[r] + 1 - start,
                    softcap,
                    tops[r],
                )
                decay = _exp(tops[r] - top)
                tops[r], totals[r] = top, totals[r] * decay + total
                _scale(sums_at + line * r, decay, size)
            for j in range(begin // 4 * 4, end, 4):
                v = values_at + places[(start + j) // 4]
                # Other cells may hold anything, and 0 x NaN is NaN.
                low, high = max(begin - j, 0), min(end - j, 4) - 1
                _add_values(
                    sums_at + line * row,
                    weights_at + 4 * j,
                    v + line * low,
                    v + line * min(max(1, low), high),
                    v + line * min(max(2, low), high),
                    v + line * high,
                    size,
                )


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
        whole += (starts[s + 1] - starts[s]) * lens[s]
    tall = (TILE * group + 3) // 4 * 4
    weights = np.empty((4, PIECE), np.float32)
    own_q, sums = np.empty((tall, size), np.float32), np.empty((tall, size), np.float32)
    tops, totals = np.empty(tall, np.float32), np.empty(tall, np.float32)
    positions = np.empty(tall, np.int64)
    places = np.empty(tables.shape[1] * keys.shape[2] // 4 + 1, np.int64)
    before = 0
    for s in range(len(lens)):
        for first in range(starts[s], starts[s + 1], TILE):
            tokens = min(TILE, starts[s + 1] - first)
            rows = tokens * group
            for k in range(kv_heads):
                # Whoever's share of all work the middle of this lies in does it.
                cost = tokens * lens[s]
                middle = 2 * before + cost
                before += cost
                if middle * parts // (2 * whole * kv_heads) != part:
                    continue
                padded = (rows + 3) // 4 * 4  # by the last row
                for r in range(padded):
                    t, g = min(r, rows - 1) // group, min(r, rows - 1) % group
                    own_q[r] = q[first + t, k, g]
                    positions[r] = lens[s] - starts[s + 1] + first + t
                    tops[r], totals[r] = _MASKED, 0
                    if len(sinks):
                        tops[r], totals[r] = sinks[k, g], 1
                sums[:padded] = 0
                _attend(
                    own_q.ctypes.data,
                    positions,
                    padded,
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
                    places,
                    weights,
                )
                for r in range(rows):
                    t, g = first + r // group, r % group
                    for d in range(size):
                        out[t, k, g, d] = sums[r, d] / totals[r]


@njit(**COMPILED)
def attend(frame: np.ndarray, part: int, parts: int) -> None:
    """A part of a call: q [T, K, G, D], k_pages, v_pages, block_tables, context_lens, query_starts,
    sinks, window [1], softcap [1] -> [T, K, G, D]."""
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
