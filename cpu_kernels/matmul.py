"""x @ w.T in float32, for any number of rows of x. w may be packed in columns, as a tile reads it,
so that it is read at the memory's speed, with the same bits.

Every element of the result is the sum over one row of x and one row of w, in an order that depends
on the rows' length alone. A row of x therefore has the same result, bit for bit, in any batch.
"""

from __future__ import annotations

import numpy as np
from numba import carray, cfunc, njit

from cpu_kernels import ffi
from cpu_kernels.llvm_intrinsics import COMPILED, floats
from cpu_kernels.microkernels import STEP, multiply, pack, tile_count
from cpu_kernels.tiles import CACHE_LINE, GRAIN, TILE

_COLUMNS, _MAX_CHUNK = TILE.columns, TILE.chunk
# Rows so many bytes apart lie in the same places of the first-level cache, and leave each other no
# room there; the sums of their tiles are collected elsewhere first.
COLLISION = 4096
# Packed columns are read again for every so many rows of x, which stay in the second-level cache.
_MIN_ROWS, _CACHED_FLOATS = 64, 2**17


@njit(**COMPILED)
def nonzero_rows(x: int, tokens: int, inputs: int) -> int:
    """The rows of x [T, I], an address, up to the last that isn't all zeros; those after it belong
    to padding tokens."""
    while tokens:
        row = floats(x + 4 * inputs * (tokens - 1), inputs)
        found = False
        for i in range(inputs):  # without an early exit, so that the loop is vectorised
            found |= row[i] != 0
        if found:
            break
        tokens -= 1
    return tokens


@njit(**COMPILED)
def clear(out: int, stride: int, tokens: int, width: int) -> None:
    """Zeros for rows [T, width] of floats that begin `stride` bytes apart."""
    for t in range(tokens):
        row = floats(out + stride * t, width)
        for i in range(width):
            row[i] = 0


@njit(**COMPILED)
def copy_sums(sums: int, out: int, stride: int, tokens: int, width: int) -> None:
    """The first columns of a tile's sums [T, C] -> rows that begin `stride` bytes apart."""
    for t in range(tokens):
        row, target = floats(sums + 4 * _COLUMNS * t, width), floats(out + stride * t, width)
        for i in range(width):
            target[i] = row[i]


@njit(**COMPILED)
def rows_of_a_block(inputs: int) -> int:
    """Rows of x for which columns are read at once."""
    return max(_MIN_ROWS, _CACHED_FLOATS // max(inputs, 1) // STEP * STEP)


@njit(**COMPILED)
def chunk_of(inputs: int) -> int:
    """Inputs of one sum of products: equal chunks, in whole steps."""
    chunks = max(1, (inputs + _MAX_CHUNK - 1) // _MAX_CHUNK)
    return (inputs + chunks * STEP - 1) // (chunks * STEP) * STEP


@njit(**COMPILED)
def _pack_chunk(
    rows: int,  # address of [R, n]
    row_bytes: int,
    width: int,
    n: int,
    columns: int,
    prefetch: int,
    lines: int,
) -> int:
    """`width` rows of w as columns [n, C], padded with zeros; `lines` lines of what is next are
    prefetched for every STEP inputs. Returns the address up to which that was done."""
    if width == _COLUMNS and n % STEP == 0:
        groups = _COLUMNS // GRAIN
        for g in range(groups):
            share = lines * (g + 1) // groups - lines * g // groups
            source = rows + g * GRAIN * row_bytes
            pack(source, row_bytes, n, columns + 4 * g * GRAIN, prefetch, share)
            prefetch += n // STEP * share * CACHE_LINE
        return prefetch
    target = floats(columns, n * _COLUMNS)
    for o in range(_COLUMNS):
        row = floats(rows + min(o, width - 1) * row_bytes, n)
        for i in range(n):
            target[i * _COLUMNS + o] = row[i] if o < width else np.float32(0)
    return prefetch


@njit(**COMPILED)
def _multiply_outputs(
    x: int,  # address of [T, I]
    tokens: int,
    inputs: int,
    w: int,
    packed: bool,
    out: int,  # address of [T, O]
    outputs: int,
    begin: int,
    end: int,
    next_begin: int,
) -> None:
    """x @ w[begin:end].T -> out[:, begin:end]; at the end, w[next_begin:] is prefetched.

    Args:
        w: address of w's outputs, C of which are contiguous in both forms.
        packed: whether w is columns [O / C, I, C], else rows [O, I].
    """
    row_bytes, out_bytes = 4 * inputs, 4 * outputs  # those of x, which are an output's of w, too
    rows = nonzero_rows(x, tokens, inputs)
    clear(out + out_bytes * rows + 4 * begin, out_bytes, tokens - rows, end - begin)
    tokens = rows
    columns = np.empty((_MAX_CHUNK, _COLUMNS), np.float32)
    sums = np.empty((tokens, _COLUMNS), np.float32)
    # For every STEP inputs, so many cache lines of the next outputs are prefetched, some of them
    # while packing, which takes about as long as one tile of the product.
    lines = (_COLUMNS * row_bytes * STEP + CACHE_LINE * inputs - 1) // (CACHE_LINE * inputs)
    pack_lines = 0 if packed else lines // (1 + tile_count(tokens))
    chunk = chunk_of(inputs)
    for o in range(begin, end if tokens else begin, _COLUMNS):
        width = min(_COLUMNS, end - o)
        target, stride = out + 4 * o, out_bytes
        direct = width == _COLUMNS and stride % COLLISION != 0
        if not direct:
            target, stride = np.int64(sums.ctypes.data), 4 * _COLUMNS
        prefetch = w + (o + _COLUMNS if o + _COLUMNS < end else next_begin) * row_bytes
        source = w + o * row_bytes
        for i in range(0, inputs, chunk):
            n = min(chunk, inputs - i)
            address = source + 4 * _COLUMNS * i
            if not packed:
                address = np.int64(columns.ctypes.data)
                outputs_of_w = source + 4 * i
                prefetch = _pack_chunk(
                    outputs_of_w, row_bytes, width, n, address, prefetch, pack_lines
                )
            multiply(
                tokens,
                x + 4 * i,
                row_bytes,
                address,
                4 * _COLUMNS,
                n,
                target,
                stride,
                i,
                prefetch,
                lines - pack_lines,
            )
            prefetch += n // STEP * (lines - pack_lines) * CACHE_LINE
        if not direct:
            copy_sums(sums.ctypes.data, out + 4 * o, out_bytes, tokens, width)


@njit(**COMPILED)
def columns_of(outputs: int, part: int, parts: int) -> int:
    """The first output of a part, in whole tiles; that of part `parts` is the number of outputs."""
    return outputs if part >= parts else outputs * part // parts // _COLUMNS * _COLUMNS


@cfunc(ffi.PART, **COMPILED)
def linear_part(address: int, part: int, parts: int) -> None:
    """One part of a call, some of the outputs: x [T, I], w [O, I] -> [T, O]; or w in columns
    [N, I, C], from group [1] int32 of those on."""
    frame = ffi.read_frame(address)
    x, x_shape = ffi.argument(frame, 0)
    w, w_shape = ffi.argument(frame, 1)
    out, out_shape = ffi.result(frame, 0)
    tokens, outputs, inputs = x_shape[0], out_shape[1], x_shape[1]
    packed = len(w_shape) == 3
    begin, end = columns_of(outputs, part, parts), columns_of(outputs, part + 1, parts)
    # The first output of this thread's next part, provided that all threads are equally fast.
    threads = max(1, parts // ffi.PARTS_PER_THREAD)
    next_begin = outputs * (part + threads) // parts // _COLUMNS * _COLUMNS
    source = np.int64(carray(w, 1, np.uint8).ctypes.data)
    rows = np.int64(carray(x, 1, np.uint8).ctypes.data)
    products = np.int64(carray(out, 1, np.uint8).ctypes.data)
    block = max(tokens, 1)
    if packed:
        first, _ = ffi.argument(frame, 2)
        source += 4 * inputs * _COLUMNS * np.int64(carray(first, 1, np.int32)[0])
        block = rows_of_a_block(inputs)
    for t in range(0, tokens, block):
        _multiply_outputs(
            rows + 4 * inputs * t,
            min(block, tokens - t),
            inputs,
            source,
            packed,
            products + 4 * outputs * t,
            outputs,
            begin,
            end,
            next_begin,
        )
