"""x @ w.T in float32, for any number of rows of x.

Every element of the result is the sum over one row of x and one row of w, in an order that depends
on the rows' length alone. A row of x therefore has the same result, bit for bit, in any batch.
"""

from __future__ import annotations

import numpy as np
from numba import carray, cfunc, njit

from cpu_kernels import ffi
from cpu_kernels.llvm_intrinsics import COMPILED
from cpu_kernels.microkernels import CACHE_LINE, LANES, TILE_COLUMNS, multiply, pack, tile_count

_MAX_CHUNK = 320  # inputs per sum of products: so many packed columns stay in the first-level cache
_MAX_ROWS = 192  # rows of x that are multiplied while the columns are there


@njit(**COMPILED)
def _is_zero(row: np.ndarray) -> bool:
    found = False
    for value in row:  # without an early exit, so that the loop is vectorised
        found |= value != 0
    return not found


@njit(**COMPILED)
def _pack_partial(rows: np.ndarray, columns: np.ndarray) -> None:
    """`pack` for fewer than 16 rows, or a length that is not a multiple of eight; slower."""
    for i in range(rows.shape[1]):
        for o in range(TILE_COLUMNS):
            columns[i, o] = rows[o, i] if o < len(rows) else np.float32(0)


@njit(**COMPILED)
def _multiply_outputs(
    x: np.ndarray,  # [T, I]
    w: np.ndarray,  # [O, I]
    out: np.ndarray,  # [T, O]
    begin: int,
    end: int,
    next_begin: int,
) -> None:
    """x @ w[begin:end].T -> out[:, begin:end]; at the end, w[next_begin:] is prefetched.

    Trailing rows of zeros, which padding tokens have, are skipped.
    """
    tokens, inputs = x.shape
    row_bytes = x.strides[0]
    chunks = max(1, (inputs + _MAX_CHUNK - 1) // _MAX_CHUNK)
    chunk = (inputs + chunks * LANES - 1) // (chunks * LANES) * LANES  # equal, in whole registers
    columns = np.empty((_MAX_CHUNK, TILE_COLUMNS), np.float32)
    sums = np.empty((_MAX_ROWS, TILE_COLUMNS), np.float32)
    while tokens and _is_zero(x[tokens - 1]):
        tokens -= 1
        out[tokens, begin:end] = 0
    for first in range(0, tokens, _MAX_ROWS):
        rows = min(_MAX_ROWS, tokens - first)
        # For every eight inputs, eight cache lines of the next rows of w are prefetched: some of
        # them while packing, which takes about as long as one tile of the product.
        pack_lines = LANES // (1 + tile_count(rows))
        for o in range(begin, end, TILE_COLUMNS):
            width = min(TILE_COLUMNS, end - o)
            # The next rows of w are contiguous.
            next_output = o + TILE_COLUMNS if o + TILE_COLUMNS < end else next_begin
            prefetch = w.ctypes.data + next_output * row_bytes
            for i in range(0, inputs, chunk):
                n = min(chunk, inputs - i)
                if width == TILE_COLUMNS and n % LANES == 0:
                    address = w.ctypes.data + o * row_bytes + 4 * i
                    pack(address, row_bytes, n, columns.ctypes.data, prefetch, pack_lines)
                    prefetch += n // LANES * pack_lines * CACHE_LINE
                else:
                    _pack_partial(w[o : o + width, i : i + n], columns)
                multiply(
                    rows,
                    x.ctypes.data + first * row_bytes + 4 * i,
                    row_bytes,
                    columns.ctypes.data,
                    4 * TILE_COLUMNS,
                    n,
                    sums.ctypes.data,
                    4 * TILE_COLUMNS,
                    i,
                    prefetch,
                    LANES - pack_lines,
                )
                prefetch += n // LANES * (LANES - pack_lines) * CACHE_LINE
            for t in range(rows):
                for j in range(width):
                    out[first + t, o + j] = sums[t, j]


@cfunc(ffi.PART, **COMPILED)
def linear_part(address: int, part: int, parts: int) -> None:
    """One part of a call, some of the outputs: x [T, I], w [O, I] -> [T, O]."""
    frame = ffi.read_frame(address)
    x, x_shape = ffi.argument(frame, 0)
    w, w_shape = ffi.argument(frame, 1)
    out, _ = ffi.result(frame, 0)
    tokens, outputs, inputs = x_shape[0], w_shape[0], x_shape[1]
    begin = outputs * part // parts // TILE_COLUMNS * TILE_COLUMNS
    end = outputs * (part + 1) // parts // TILE_COLUMNS * TILE_COLUMNS
    if part + 1 == parts:
        end = outputs
    # The first output of this thread's next part, provided that all threads are equally fast.
    threads = max(1, parts // ffi.PARTS_PER_THREAD)
    next_begin = outputs * (part + threads) // parts // TILE_COLUMNS * TILE_COLUMNS
    _multiply_outputs(
        carray(x, (tokens, inputs), np.float32),
        carray(w, (outputs, inputs), np.float32),
        carray(out, (tokens, outputs), np.float32),
        begin,
        end,
        next_begin,
    )
