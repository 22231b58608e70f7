"""x @ w.T in float32, for few rows of x and for many.

Every element is a sum of its own over one row of x and one of w, in an order that depends on their
length alone: a row's result has the same bits in whatever company.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from cpu_kernels import ffi
from cpu_kernels.atomics import COMPILED, floats, prefetch

# Sums may be vectorised; NaN and infinity stay what they are.
FAST = {"reassoc", "contract", "nsz"}
_NEAR = 2**15  # elements of x that stay in the second cache while w passes
_AHEAD = 8  # rows of w
_LINE = 64  # bytes


@njit(fastmath=FAST, **COMPILED)
def dot_2x4(
    x0: int, x1: int, w0: int, w1: int, w2: int, w3: int, n: int
) -> tuple[float, float, float, float, float, float, float, float]:
    """The eight products of two rows and four of n floats, by their addresses: as many sums as hide
    how long an addition takes. More don't fit into registers (2 x 4: 57 GFLOP/s a core; 3 x 4: 50;
    4 x 4: 43)."""
    a, b = floats(x0, n), floats(x1, n)
    p, q, r, s = floats(w0, n), floats(w1, n), floats(w2, n), floats(w3, n)
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = np.float32(0)
    for i in range(n):
        a0 += a[i] * p[i]
        a1 += a[i] * q[i]
        a2 += a[i] * r[i]
        a3 += a[i] * s[i]
        b0 += b[i] * p[i]
        b1 += b[i] * q[i]
        b2 += b[i] * r[i]
        b3 += b[i] * s[i]
    return a0, a1, a2, a3, b0, b1, b2, b3


@njit(**COMPILED)
def _is_zero(row: np.ndarray) -> bool:
    found = False
    for value in row:  # without an early end it is vectorised
        found |= value != 0
    return not found


@njit(**COMPILED)
def _multiply(x: np.ndarray, w: np.ndarray, out: np.ndarray, begin: int, end: int) -> None:
    """x [T, I] @ w[begin:end].T -> out[:, begin:end]. Last rows of zeros, such as padding is, cost
    next to nothing."""
    tokens, inputs, last = x.shape[0], x.shape[1], end - 1
    tall = max(2, _NEAR // inputs // 2 * 2)
    row = 4 * inputs  # bytes
    x_at, w_at = x.ctypes.data, w.ctypes.data
    while tokens and _is_zero(x[tokens - 1]):
        tokens -= 1
        out[tokens, begin:end] = 0
    for first in range(0, tokens, tall):
        stop = min(first + tall, tokens)
        # Each pair of rows has a share of the rows of w ahead brought near.
        share = -(-4 * row // ((stop - first + 1) // 2 * _LINE)) * _LINE
        for o in range(begin, end, 4):
            # Past the end: the last row once more.
            o1, o2, o3 = min(o + 1, last), min(o + 2, last), min(o + 3, last)
            w0, w1, w2, w3 = w_at + row * o, w_at + row * o1, w_at + row * o2, w_at + row * o3
            ahead = w0 + row * _AHEAD
            for t in range(first, stop, 2):
                for line in range(ahead, min(ahead + share, w_at + row * end), _LINE):
                    prefetch(line)
                ahead += share
                u = min(t + 1, stop - 1)
                (
                    out[t, o],
                    out[t, o1],
                    out[t, o2],
                    out[t, o3],
                    out[u, o],
                    out[u, o1],
                    out[u, o2],
                    out[u, o3],
                ) = dot_2x4(x_at + row * t, x_at + row * u, w0, w1, w2, w3, inputs)


@njit(**COMPILED)
def multiply(frame: np.ndarray, part: int, parts: int) -> None:
    """A part of a call: x [T, I], w [O, I] -> [T, O]."""
    x, x_shape = ffi.argument(frame, 0)
    w, w_shape = ffi.argument(frame, 1)
    out, _ = ffi.result(frame, 0)
    tokens, outputs, inputs = x_shape[0], w_shape[0], x_shape[1]
    begin = outputs * part // parts // 4 * 4
    end = outputs if part + 1 == parts else outputs * (part + 1) // parts // 4 * 4
    _multiply(
        carray(x, (tokens, inputs), np.float32),
        carray(w, (outputs, inputs), np.float32),
        carray(out, (tokens, outputs), np.float32),
        begin,
        end,
    )
