"""Paged attention in float32 that reads each page where it lies, once for a group of query heads.

The softmax is online (Milakov and Gimelshein 2018, algorithm 3) over pieces of context that start
at multiples of their size, and every sum has an order of its own: a token's bits depend on its own
sequence alone, decode or prefill.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic

from cpu_kernels import ffi
from cpu_kernels.dense import FAST, dot_2x4
from cpu_kernels.threads import PARTS

NAME = "jaxserve_attention"

PIECE = 64  # keys of context that one turn takes
TILE = 32  # query tokens of one sequence that take it together
_MASKED = np.float32(-1e30)  # finite: what is less than every score
_NO_WINDOW = 2**30

_ONE, _LOWEST = np.float32(1), np.float32(-87)
_LOG2E, _HALF = np.float32(1.44269504), np.float32(0.5)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_P0, _P1, _P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P3, _P4, _P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)


@intrinsic
def _float_of_bits(typing: Any, bits: Any) -> Any:
    def make(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return types.float32(types.int32), make


@njit(fastmath={"contract"}, cache=True)
def _exp(x: float) -> float:
    """e ** x in float32 for x <= 0 (the polynomial is that of Cephes' expf), to be vectorised."""
    x = _LOWEST if x < _LOWEST else x
    n = np.int32(x * _LOG2E - _HALF)
    r = x - np.float32(n) * _LN2_HIGH - np.float32(n) * _LN2_LOW
    p = ((((_P0 * r + _P1) * r + _P2) * r + _P3) * r + _P4) * r + _P5
    return (p * r * r + r + _ONE) * _float_of_bits(np.int32((n + 127) << 23))


@njit(fastmath=FAST | {"nnan"}, cache=True)
def _highest(scores: np.ndarray) -> float:
    highest = _MASKED
    for j in range(PIECE):
        highest = max(highest, scores[j])
    return highest


@njit(fastmath=FAST, cache=True)
def _weigh(scores: np.ndarray, begin: int, end: int, softcap: float, top: float) -> tuple[float, float]:
    """Scores [PIECE] become weights, 0 but in begin : end; the new top, and their sum."""
    if softcap > 0:
        for j in range(begin, end):
            scores[j] = softcap * np.float32(np.tanh(scores[j] / softcap))
    for j in range(PIECE):
        scores[j] = scores[j] if begin <= j < end else _MASKED
    top = max(top, _highest(scores))
    total = np.float32(0)
    for j in range(PIECE):
        weight = _exp(scores[j] - top)
        weight = weight if begin <= j < end else np.float32(0)
        scores[j] = weight
        total += weight
    return top, total


@njit(fastmath=FAST, cache=True)
def _add_values(
    a: np.ndarray, b: np.ndarray, p: np.ndarray, q: np.ndarray, j: int,
    v0: np.ndarray, v1: np.ndarray, v2: np.ndarray, v3: np.ndarray,
) -> None:
    """Adds four values [D], weighed by p[j : j + 4] and by q[j : j + 4], to a and to b."""
    p0, p1, p2, p3 = p[j], p[j + 1], p[j + 2], p[j + 3]
    q0, q1, q2, q3 = q[j], q[j + 1], q[j + 2], q[j + 3]
    for d in range(a.shape[0]):
        x0, x1, x2, x3 = v0[d], v1[d], v2[d], v3[d]
        a[d] += p0 * x0 + p1 * x1 + p2 * x2 + p3 * x3
        b[d] += q0 * x0 + q1 * x1 + q2 * x2 + q3 * x3


@njit(fastmath=FAST, cache=True)
def _scale(row: np.ndarray, factor: float) -> None:
    for d in range(row.shape[0]):
        row[d] *= factor


@njit(cache=True)
def _attend(
    q: np.ndarray,  # [R + 1, D], R rows in the order of their positions; the spare one is a copy
    positions: np.ndarray,  # [R + 1]
    keys: np.ndarray,  # [B, P, D]
    values: np.ndarray,  # [B, P, D]
    table: np.ndarray,  # [W]
    window: int,
    softcap: float,
    tops: np.ndarray,  # [R + 1], and the next two: the softmax so far
    totals: np.ndarray,  # [R + 1]
    sums: np.ndarray,  # [R + 1, D]
) -> None:
    """What the rows of one kv head see, piece by piece."""
    rows, block_size = len(q) - 1, keys.shape[1]
    weights = np.empty((2, PIECE), np.float32)
    first = max(0, positions[0] - window + 1) // PIECE * PIECE
    for start in range(first, positions[rows] + 1, PIECE):
        for r in range(0, rows, 2):
            # Of this piece, the pair sees begin : end.
            begin = max(0, positions[r] - window + 1 - start)
            end = min(PIECE, positions[r + 1] + 1 - start)
            for j in range(begin // 4 * 4, end, 4):
                page, i = keys[table[(start + j) // block_size]], (start + j) % block_size
                dots = dot_2x4(q[r], q[r + 1], page[i], page[i + 1], page[i + 2], page[i + 3])
                for n in range(4):
                    weights[0, j + n], weights[1, j + n] = dots[n], dots[4 + n]
            if begin >= end:
                continue
            for n in range(2):
                row = r + n
                own = max(0, positions[row] - window + 1 - start)
                top, total = _weigh(
                    weights[n], own, positions[row] + 1 - start, softcap, tops[row]
                )
                decay = _exp(tops[row] - top)
                tops[row], totals[row] = top, totals[row] * decay + total
                _scale(sums[row], decay)
            for j in range(begin // 4 * 4, end, 4):
                page, i = values[table[(start + j) // block_size]], (start + j) % block_size
                # Other cells may hold anything, and 0 x NaN is NaN.
                low, high = i + max(begin - j, 0), i + min(end - j, 4) - 1
                _add_values(
                    sums[r],
                    sums[r + 1],
                    weights[0],
                    weights[1],
                    j,
                    page[max(i, low)],
                    page[min(max(i + 1, low), high)],
                    page[min(max(i + 2, low), high)],
                    page[min(i + 3, high)],
                )


@njit(cache=True)
def _part(
    q: np.ndarray,  # [T, K, G, D]
    keys: np.ndarray,  # [B, K, P, D]
    values: np.ndarray,  # [B, K, P, D]
    tables: np.ndarray,  # [S, W]
    lens: np.ndarray,  # [S]
    starts: np.ndarray,  # [S + 1]
    sinks: np.ndarray,  # [K, G], or [0, 0]
    settings: np.ndarray,  # part, parts, window
    softcap: float,
    out: np.ndarray,  # [T, K, G, D]
) -> None:
    """One part of the work: rows of other parts are zeros."""
    _, kv_heads, group, size = q.shape
    part, parts, window = settings
    out[:] = 0
    whole = 0
    for s in range(len(lens)):
        whole += (starts[s + 1] - starts[s]) * lens[s]
    whole *= kv_heads
    tall = TILE * group + 1
    rows_q = np.empty((tall, size), np.float32)
    sums = np.empty((tall, size), np.float32)
    tops, totals = np.empty(tall, np.float32), np.empty(tall, np.float32)
    positions = np.empty(tall, np.int64)
    done = 0
    for s in range(len(lens)):
        for first in range(starts[s], starts[s + 1], TILE):
            tokens = min(TILE, starts[s + 1] - first)
            place = lens[s] - starts[s + 1] + first  # the first token's position
            for k in range(kv_heads):
                cost = tokens * lens[s]
                mine = (2 * done + cost) * parts // (2 * whole) == part
                done += cost
                if not mine:
                    continue
                rows = tokens * group
                for r in range(rows + 1):
                    t, g = min(r, rows - 1) // group, min(r, rows - 1) % group
                    rows_q[r] = q[first + t, k, g]
                    positions[r] = place + t
                    tops[r], totals[r] = _MASKED, 0
                    if len(sinks):
                        tops[r], totals[r] = sinks[k, g], 1
                sums[: rows + 1] = 0
                n = rows + 1
                _attend(
                    rows_q[:n],
                    positions[:n],
                    keys[:, k],
                    values[:, k],
                    tables[s],
                    window,
                    softcap,
                    tops[:n],
                    totals[:n],
                    sums[:n],
                )
                for r in range(rows):
                    for d in range(size):
                        out[first + r // group, k, r % group, d] = sums[r, d] / totals[r]


@cfunc(ffi.HANDLER, cache=True)
def _handler(address: int) -> int:
    frame = ffi.opened(address)
    if ffi.asks_version(frame):
        return 0
    q, n = ffi.argument(frame, 0)
    keys, m = ffi.argument(frame, 1)
    values, _ = ffi.argument(frame, 2)
    tables, w = ffi.argument(frame, 3)
    lens, _ = ffi.argument(frame, 4)
    starts, _ = ffi.argument(frame, 5)
    sinks, sunk = ffi.argument(frame, 6)
    settings, _ = ffi.argument(frame, 7)
    softcap, _ = ffi.argument(frame, 8)
    out, _ = ffi.result(frame, 0)
    pool = (m[0], m[1], m[2], m[3])
    shape = (n[0], n[1], n[2], n[3])
    _part(
        carray(q, shape, np.float32),
        carray(keys, pool, np.float32),
        carray(values, pool, np.float32),
        carray(tables, (w[0], w[1]), np.int32),
        carray(lens, w[0], np.int32),
        carray(starts, w[0] + 1, np.int32),
        carray(sinks, (sunk[0], sunk[1]), np.float32),
        carray(settings, 3, np.int32),
        carray(softcap, 1, np.float32)[0],
        carray(out, shape, np.float32),
    )
    return 0


ffi.register(NAME, _handler)


def attention(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    block_tables: jax.Array,
    context_lens: jax.Array,
    query_starts: jax.Array,
    *,
    window: int | None,
    softcap: float | None,
    sinks: jax.Array | None,
) -> jax.Array:
    """Causal attention of a ragged batch over paged keys and values.

    Args:
        q: [T, K, G, D] float32, scaled: G query heads for each of K kv heads.
        k_pages: [B, K, P, D] float32; P is a multiple of 4.
        v_pages: [B, K, P, D] float32.
        block_tables: [S, W] int32.
        context_lens: [S] int32, tokens.
        query_starts: [S + 1] int32.
        window: a token sees the last `window` positions, its own included; None sees all.
        softcap: scores become softcap * tanh(score / softcap).
        sinks: [K, G] float32, one more logit a head in the softmax, with no value.

    Returns:
        [T, K, G, D] float32; padding tokens have zeros.
    """
    call = jax.ffi.ffi_call(NAME, jax.ShapeDtypeStruct(q.shape, jnp.float32))
    arguments = (q, k_pages, v_pages, block_tables, context_lens, query_starts)
    logits = jnp.zeros((0, 0), jnp.float32) if sinks is None else sinks
    parts = [
        call(
            *arguments,
            logits,
            np.array([part, PARTS, window or _NO_WINDOW], np.int32),
            np.array([softcap or 0], np.float32),
        )
        for part in range(PARTS)
    ]
    return functools.reduce(jnp.add, parts)
