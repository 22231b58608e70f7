"""x @ w.T in float32, for few rows of x and for many.

Every element is a sum of its own over one row of x and one of w, in an order that depends on their
length alone: a row's result has the same bits in whatever company.
"""

from __future__ import annotations

import numpy as np
from numba import carray, cfunc, njit

from cpu_kernels import ffi
from cpu_kernels.machine import COMPILED
from cpu_kernels.tiles import LANES, LINE, WIDE, multiply, pack, tiles_of

_CHUNK = 320  # inputs at most that a chain takes; their columns stay in the first cache
_TALL = 192  # rows of x that meet the columns while they are there


@njit(**COMPILED)
def _is_zero(row: np.ndarray) -> bool:
    found = False
    for value in row:  # without an early end it is vectorised
        found |= value != 0
    return not found


@njit(**COMPILED)
def _pack_few(rows: np.ndarray, columns: np.ndarray) -> None:
    """`pack` for any number of rows and columns."""
    for i in range(rows.shape[1]):
        for o in range(WIDE):
            columns[i, o] = rows[o, i] if o < len(rows) else np.float32(0)


@njit(**COMPILED)
def _linear(x: np.ndarray, w: np.ndarray, out: np.ndarray, begin: int, end: int, then: int) -> None:
    """x [T, I] @ w[begin:end].T -> out[:, begin:end], while w[then:] is prefetched. Last rows of
    zeros, such as padding is, cost next to nothing."""
    tokens, inputs = x.shape
    row_bytes = x.strides[0]
    pieces = max(1, (inputs + _CHUNK - 1) // _CHUNK)
    chunk = (inputs + pieces * LANES - 1) // (pieces * LANES) * LANES  # alike, whole registers
    columns, sums = np.empty((_CHUNK, WIDE), np.float32), np.empty((_TALL, WIDE), np.float32)
    while tokens and _is_zero(x[tokens - 1]):
        tokens -= 1
        out[tokens, begin:end] = 0
    for first in range(0, tokens, _TALL):
        rows = min(_TALL, tokens - first)
        # For each eight inputs, eight lines of the next rows of w are prefetched, some of them
        # while packing, which takes about as long as a tile.
        pack_lines = LANES // (1 + tiles_of(rows))
        for o in range(begin, end, WIDE):
            wide = min(WIDE, end - o)
            # The next rows of w, one piece of memory.
            ahead = w.ctypes.data + (o + WIDE if o + WIDE < end else then) * row_bytes
            for i in range(0, inputs, chunk):
                n = min(chunk, inputs - i)
                if wide == WIDE and n % LANES == 0:
                    place = w.ctypes.data + o * row_bytes + 4 * i
                    pack(place, row_bytes, n, columns.ctypes.data, ahead, pack_lines)
                    ahead += n // LANES * pack_lines * LINE
                else:
                    _pack_few(w[o : o + wide, i : i + n], columns)
                multiply(
                    rows,
                    x.ctypes.data + first * row_bytes + 4 * i,
                    row_bytes,
                    columns.ctypes.data,
                    4 * WIDE,
                    n,
                    sums.ctypes.data,
                    4 * WIDE,
                    i,
                    ahead,
                    LANES - pack_lines,
                )
                ahead += n // LANES * (LANES - pack_lines) * LINE
            for t in range(rows):
                for j in range(wide):
                    out[first + t, o + j] = sums[t, j]


@cfunc(ffi.PART, **COMPILED)
def linear(address: int, part: int, parts: int) -> None:
    """A part of a call: x [T, I], w [O, I] -> [T, O]."""
    frame = ffi.opened(address)
    x, x_shape = ffi.argument(frame, 0)
    w, w_shape = ffi.argument(frame, 1)
    out, _ = ffi.result(frame, 0)
    tokens, outputs, inputs = x_shape[0], w_shape[0], x_shape[1]
    begin = outputs * part // parts // WIDE * WIDE
    end = outputs if part + 1 == parts else outputs * (part + 1) // parts // WIDE * WIDE
    # This thread's next part, if all threads are equally fast.
    then = outputs * (part + max(1, parts // ffi.PARTS)) // parts // WIDE * WIDE
    _linear(
        carray(x, (tokens, inputs), np.float32),
        carray(w, (outputs, inputs), np.float32),
        carray(out, (tokens, outputs), np.float32),
        begin,
        end,
        then,
    )
