"""x @ w.T in float32, for any number of rows of x; w may be stored in blocks of few bits, which are
widened sixteen rows at a time, and gives the same bits as when it is widened before.

Every element of the result is the sum over one row of x and one row of w, in an order that depends
on the rows' length alone. A row of x therefore has the same result, bit for bit, in any batch.
"""

from __future__ import annotations

import numpy as np
from numba import carray, cfunc, njit

from cpu_kernels import ffi
from cpu_kernels.llvm_intrinsics import COMPILED, pointer
from cpu_kernels.microkernels import CACHE_LINE, LANES, TILE_COLUMNS, multiply, pack, tile_count
from cpu_kernels.widen import widen_row

FLOATS = -1  # the kind of rows that are float32

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
    w: int,
    w_bytes: int,
    kind: int,
    out: np.ndarray,  # [T, O]
    begin: int,
    end: int,
    next_begin: int,
) -> None:
    """x @ w[begin:end].T -> out[:, begin:end]; at the end, w[next_begin:] is prefetched.

    Trailing rows of zeros, which padding tokens have, are skipped.

    Args:
        w: address of w's rows, one for each output.
        w_bytes: bytes from a row to the next.
        kind: of the blocks that the rows are stored in, a value of KINDS; FLOATS for float32.
    """
    tokens, inputs = x.shape
    row_bytes = x.strides[0]
    is_stored = kind != FLOATS
    widened = np.empty((TILE_COLUMNS if is_stored else 0, inputs), np.float32)
    # For every eight inputs, so many cache lines of the next rows of w are prefetched.
    lines = LANES if not is_stored else (LANES * w_bytes + row_bytes - 1) // row_bytes
    chunks = max(1, (inputs + _MAX_CHUNK - 1) // _MAX_CHUNK)
    chunk = (inputs + chunks * LANES - 1) // (chunks * LANES) * LANES  # equal, in whole registers
    columns = np.empty((_MAX_CHUNK, TILE_COLUMNS), np.float32)
    sums = np.empty((_MAX_ROWS, TILE_COLUMNS), np.float32)
    while tokens and _is_zero(x[tokens - 1]):
        tokens -= 1
        out[tokens, begin:end] = 0
    for first in range(0, tokens, _MAX_ROWS):
        rows = min(_MAX_ROWS, tokens - first)
        # Some of the lines are prefetched while packing, which takes about as long as one tile of
        # the product.
        pack_lines = lines // (1 + tile_count(rows))
        for o in range(begin, end, TILE_COLUMNS):
            width = min(TILE_COLUMNS, end - o)
            # The next rows of w are contiguous.
            next_output = o + TILE_COLUMNS if o + TILE_COLUMNS < end else next_begin
            prefetch = w + next_output * w_bytes
            source = w + o * w_bytes
            if is_stored:
                # Asked for here: numba frees an array after the last use of its name.
                target = np.int64(widened.ctypes.data)
                for r in range(width):
                    widen_row(kind, source + r * w_bytes, inputs, target + r * row_bytes)
                source = target
            for i in range(0, inputs, chunk):
                n = min(chunk, inputs - i)
                if width == TILE_COLUMNS and n % LANES == 0:
                    pack(source + 4 * i, row_bytes, n, columns.ctypes.data, prefetch, pack_lines)
                    prefetch += n // LANES * pack_lines * CACHE_LINE
                else:
                    rows_of_w = carray(pointer(source), (width, inputs), np.float32)
                    _pack_partial(rows_of_w[:, i : i + n], columns)
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
                    lines - pack_lines,
                )
                prefetch += n // LANES * (lines - pack_lines) * CACHE_LINE
            for t in range(rows):
                for j in range(width):
                    out[first + t, o + j] = sums[t, j]


@njit(**COMPILED)
def _multiply_part(frame: np.ndarray, part: int, parts: int, kind: int) -> None:
    x, x_shape = ffi.argument(frame, 0)
    w, w_shape = ffi.argument(frame, 1)
    out, _ = ffi.result(frame, 0)
    tokens, outputs, inputs = x_shape[0], w_shape[0], x_shape[1]
    w_bytes = 4 * inputs if kind == FLOATS else w_shape[1] * w_shape[2]
    begin = outputs * part // parts // TILE_COLUMNS * TILE_COLUMNS
    end = outputs * (part + 1) // parts // TILE_COLUMNS * TILE_COLUMNS
    if part + 1 == parts:
        end = outputs
    # The first output of this thread's next part, provided that all threads are equally fast.
    threads = max(1, parts // ffi.PARTS_PER_THREAD)
    next_begin = outputs * (part + threads) // parts // TILE_COLUMNS * TILE_COLUMNS
    _multiply_outputs(
        carray(x, (tokens, inputs), np.float32),
        np.int64(carray(w, 1, np.uint8).ctypes.data),
        w_bytes,
        kind,
        carray(out, (tokens, outputs), np.float32),
        begin,
        end,
        next_begin,
    )


@cfunc(ffi.PART, **COMPILED)
def linear_part(address: int, part: int, parts: int) -> None:
    """One part of a call, some of the outputs: x [T, I], w [O, I] -> [T, O]."""
    _multiply_part(ffi.read_frame(address), part, parts, FLOATS)


@cfunc(ffi.PART, **COMPILED)
def stored_linear_part(address: int, part: int, parts: int) -> None:
    """As linear_part, of w in blocks [O, N, bytes] of a kind [1] int32."""
    frame = ffi.read_frame(address)
    kind, _ = ffi.argument(frame, 2)
    _multiply_part(frame, part, parts, carray(kind, 1, np.int32)[0])
