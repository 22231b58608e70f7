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
MIN_ROWS, CACHED_FLOATS = 64, 2**17


@njit(**COMPILED)
def nonzero_rows(x: np.ndarray) -> int:
    """The rows up to the last that isn't all zeros; those after it belong to padding tokens."""
    tokens = len(x)
    while tokens:
        found = False
        for value in x[tokens - 1]:  # without an early exit, so that the loop is vectorised
            found |= value != 0
        if found:
            break
        tokens -= 1
    return tokens


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
    x: np.ndarray,  # [T, I]
    w: int,
    packed: bool,
    out: np.ndarray,  # [T, O]
    begin: int,
    end: int,
    next_begin: int,
) -> None:
    """x @ w[begin:end].T -> out[:, begin:end]; at the end, w[next_begin:] is prefetched.

    Args:
        w: address of w's outputs, C of which are contiguous in both forms.
        packed: whether w is columns [O / C, I, C], else rows [O, I].
    """
    inputs, row_bytes = x.shape[1], x.strides[0]  # and of an output of w
    tokens = nonzero_rows(x)
    out[tokens:, begin:end] = 0
    columns = np.empty((_MAX_CHUNK, _COLUMNS), np.float32)
    sums = np.empty((tokens, _COLUMNS), np.float32)
    # For every STEP inputs, so many cache lines of the next outputs are prefetched, some of them
    # while packing, which takes about as long as one tile of the product.
    lines = (_COLUMNS * row_bytes * STEP + CACHE_LINE * inputs - 1) // (CACHE_LINE * inputs)
    pack_lines = 0 if packed else lines // (1 + tile_count(tokens))
    chunk = chunk_of(inputs)
    for o in range(begin, end if tokens else begin, _COLUMNS):
        width = min(_COLUMNS, end - o)
        target, stride = out.ctypes.data + 4 * o, out.strides[0]
        if width < _COLUMNS or stride % COLLISION == 0:
            target, stride = sums.ctypes.data, sums.strides[0]
        prefetch = w + (o + _COLUMNS if o + _COLUMNS < end else next_begin) * row_bytes
        source = w + o * row_bytes
        for i in range(0, inputs, chunk):
            n = min(chunk, inputs - i)
            address = source + 4 * _COLUMNS * i
            if not packed:
                address = np.int64(columns.ctypes.data)
                rows = source + 4 * i
                prefetch = _pack_chunk(rows, row_bytes, width, n, address, prefetch, pack_lines)
            multiply(
                tokens,
                x.ctypes.data + 4 * i,
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
        for t in range(tokens if target == sums.ctypes.data else 0):
            for j in range(width):
                out[t, o + j] = sums[t, j]


@njit(**COMPILED)
def columns_of(outputs: int, part: int, parts: int) -> int:
    """The first output of a part, in whole tiles; that of part `parts` is the number of outputs."""
    return outputs if part >= parts else outputs * part // parts // _COLUMNS * _COLUMNS


@njit(**COMPILED)
def _multiply_part(frame: np.ndarray, part: int, parts: int, packed: bool) -> None:
    x, x_shape = ffi.argument(frame, 0)
    w, _ = ffi.argument(frame, 1)
    out, out_shape = ffi.result(frame, 0)
    tokens, outputs, inputs = x_shape[0], out_shape[1], x_shape[1]
    begin, end = columns_of(outputs, part, parts), columns_of(outputs, part + 1, parts)
    # The first output of this thread's next part, provided that all threads are equally fast.
    threads = max(1, parts // ffi.PARTS_PER_THREAD)
    next_begin = outputs * (part + threads) // parts // _COLUMNS * _COLUMNS
    rows = carray(x, (tokens, inputs), np.float32)
    address = np.int64(carray(w, 1, np.uint8).ctypes.data)
    if packed:
        first, _ = ffi.argument(frame, 2)
        address += 4 * inputs * _COLUMNS * np.int64(carray(first, 1, np.int32)[0])
    products = carray(out, (tokens, outputs), np.float32)
    block = max(tokens, 1)
    if packed:
        block = max(MIN_ROWS, CACHED_FLOATS // max(inputs, 1) // STEP * STEP)
    for t in range(0, tokens, block):
        _multiply_outputs(
            rows[t : t + block],
            address,
            packed,
            products[t : t + block],
            begin,
            end,
            next_begin,
        )


@cfunc(ffi.PART, **COMPILED)
def linear_part(address: int, part: int, parts: int) -> None:
    """One part of a call, some of the outputs: x [T, I], w [O, I] -> [T, O]."""
    _multiply_part(ffi.read_frame(address), part, parts, False)


@cfunc(ffi.PART, **COMPILED)
def packed_linear_part(address: int, part: int, parts: int) -> None:
    """As linear_part, of w in columns [O / C, I, C], from group [1] int32 of those on."""
    _multiply_part(ffi.read_frame(address), part, parts, True)
