"""x @ w.T in float32, with w in columns of codes (see columns.py), for any number of rows of x.

The bits are those of the product with the widened matrix. Few rows are multiplied by columns that
are widened in registers; for more, so many columns are widened as the first-level cache holds, once
for all rows.
"""

from __future__ import annotations

import numpy as np
from numba import carray, cfunc, njit

from cpu_kernels import ffi
from cpu_kernels.llvm_intrinsics import COMPILED, call_address
from cpu_kernels.llvm_intrinsics import words as words_at
from cpu_kernels.matmul import (
    COLLISION,
    chunk_of,
    clear,
    columns_of,
    copy_sums,
    nonzero_rows,
    rows_of_a_block,
)
from cpu_kernels.microkernels import STEP, multiply
from cpu_kernels.scales import expand, nbytes
from cpu_kernels.tiles import CACHE_LINE, TILE
from cpu_kernels.widen import ARGUMENTS, FUSED_ROWS, NAMES, VARIANTS, kernels

# The settings of a call, in order; see columns.py.
SETTINGS = (
    "variant",  # of the kernel, see widen.py
    "input_bits",  # bits of the codes of one input and output
    "high_bits",
    "group",  # inputs that share a scale
    "scale_type",  # see scales.py
    "offset_type",
    "groups",  # G, or 0 without scales
    "scale_factors",  # F, or 0
    "offset_factors",
    "has_offsets",
)
_COLUMNS, _MAX_CHUNK, _SETTINGS = TILE.columns, TILE.chunk, len(SETTINGS)
# Places of settings, and of words in a kernel's arguments.
_VARIANT, _INPUT_BITS, _HIGH_BITS, _GROUP = range(4)
_SCALE_TYPE, _OFFSET_TYPE, _GROUPS, _SCALE_FACTORS, _OFFSET_FACTORS, _HAS_OFFSETS = range(4, 10)
_ROWS, _X, _X_STRIDE, _CODES, _HIGH, _SCALES, _OFFSETS = map(
    NAMES.index, ("rows", "x", "x_stride", "codes", "high", "scales", "offsets")
)
_TABLE, _K_GROUP, _BEGIN, _END, _OUT, _OUT_STRIDE, _ADDS = map(
    NAMES.index, ("table", "group", "begin", "end", "out", "out_stride", "adds")
)


@njit(**COMPILED)
def _expand_scales(
    settings: np.ndarray,
    group: int,
    scales: int,
    scale_factors: int,
    offsets: int,
    offset_factors: int,
    out_scales: int,
    out_offsets: int,
) -> None:
    """Scales and offsets of the group-th group of outputs -> [G, C] float32; all are addresses."""
    count, kind, factors = settings[_GROUPS], settings[_SCALE_TYPE], settings[_SCALE_FACTORS]
    if count == 0:
        return
    source = scales + group * nbytes(kind, count)
    expand(kind, source, count, scale_factors + 2 * group * factors * _COLUMNS, factors, out_scales)
    if settings[_HAS_OFFSETS]:
        kind, factors = settings[_OFFSET_TYPE], settings[_OFFSET_FACTORS]
        source = offsets + group * nbytes(kind, count)
        first = offset_factors + 2 * group * factors * _COLUMNS
        expand(kind, source, count, first, factors, out_offsets)


@njit(**COMPILED)
def _multiply_outputs(
    x: int,  # address of [T, I]
    tokens: int,
    inputs: int,
    addresses: np.ndarray,  # of codes, high, scales, their factors, offsets, theirs, and the table
    settings: np.ndarray,
    out: int,  # address of [T, O]
    outputs: int,
    begin: int,
    end: int,
    next_begin: int,
    first_group: int,
) -> None:
    """x @ w[begin:end].T -> out[:, begin:end]; begin is a multiple of C. At the end, the codes of
    w[next_begin:] are prefetched."""
    row_bytes, out_bytes = 4 * inputs, 4 * outputs
    rows = nonzero_rows(x, tokens, inputs)
    clear(out + out_bytes * rows + 4 * begin, out_bytes, tokens - rows, end - begin)
    tokens = rows
    fused = tokens <= FUSED_ROWS
    groups = settings[_GROUPS]
    scales = np.empty(max(groups, 1) * _COLUMNS, np.float32)
    offsets = np.empty(max(groups, 1) * _COLUMNS, np.float32)
    columns = np.empty((0 if fused else _MAX_CHUNK, _COLUMNS), np.float32)
    sums = np.empty((tokens, _COLUMNS), np.float32)
    words = np.zeros(ARGUMENTS, np.int64)
    kernel = words_at(kernels(), VARIANTS)[settings[_VARIANT]]
    words[_SCALES], words[_OFFSETS] = scales.ctypes.data, offsets.ctypes.data
    words[_TABLE], words[_K_GROUP] = addresses[6], settings[_GROUP]
    words[_X], words[_X_STRIDE] = x, row_bytes
    chunk, input_bytes = chunk_of(inputs), _COLUMNS * settings[_INPUT_BITS] // 8
    lines = (input_bytes * STEP + CACHE_LINE - 1) // CACHE_LINE
    for o in range(begin, end if tokens else begin, _COLUMNS):
        width, group = min(_COLUMNS, end - o), first_group + o // _COLUMNS
        target, stride = out + 4 * o, out_bytes
        direct = width == _COLUMNS and stride % COLLISION != 0
        if not direct:
            target, stride = np.int64(sums.ctypes.data), 4 * _COLUMNS
        _expand_scales(
            settings,
            group,
            addresses[2],
            addresses[3],
            addresses[4],
            addresses[5],
            words[_SCALES],
            words[_OFFSETS],
        )
        words[_CODES] = addresses[0] + group * inputs * input_bytes
        next_output = o + _COLUMNS if o + _COLUMNS < end else next_begin
        next_group = first_group + next_output // _COLUMNS
        words[_HIGH] = addresses[1] + group * inputs * _COLUMNS * settings[_HIGH_BITS] // 8
        for i in range(0, inputs, chunk):
            n = min(chunk, inputs - i)
            words[_BEGIN], words[_END] = i, i + n
            if fused:
                words[_ROWS], words[_X] = tokens, x + 4 * i
                words[_OUT], words[_OUT_STRIDE], words[_ADDS] = target, stride, i
                call_address(kernel, np.int64(words.ctypes.data))
                continue
            words[_ROWS], words[_OUT] = 0, columns.ctypes.data
            call_address(kernel, np.int64(words.ctypes.data))
            prefetch = words[_CODES] + (i + n) * input_bytes
            if i + n == inputs:
                prefetch = addresses[0] + next_group * inputs * input_bytes
            multiply(
                tokens,
                x + 4 * i,
                row_bytes,
                columns.ctypes.data,
                4 * _COLUMNS,
                n,
                target,
                stride,
                i,
                prefetch,
                lines,
            )
        if not direct:
            copy_sums(sums.ctypes.data, out + 4 * o, out_bytes, tokens, width)
    # Arrays whose addresses are among the words live until here.
    scales[0] = offsets[0] = 0


@cfunc(ffi.PART, **COMPILED)
def stored_linear_part(address: int, part: int, parts: int) -> None:
    """One part of a call, some of the outputs: x [T, I], codes, high, scales, scale_factors,
    offsets, offset_factors (see columns.py; offsets are minima or zeros), table [16] float32,
    SETTINGS int32, the first group of outputs [1] int32 -> [T, O]."""
    frame = ffi.read_frame(address)
    x, x_shape = ffi.argument(frame, 0)
    out, out_shape = ffi.result(frame, 0)
    addresses = np.empty(7, np.int64)
    for n in range(7):
        data, _ = ffi.argument(frame, 1 + n)
        addresses[n] = carray(data, 1, np.uint8).ctypes.data
    data, _ = ffi.argument(frame, 8)
    given = carray(data, _SETTINGS, np.int32)
    settings = np.empty(_SETTINGS, np.int64)
    for n in range(_SETTINGS):
        settings[n] = given[n]
    data, _ = ffi.argument(frame, 9)
    first = np.int64(carray(data, 1, np.int32)[0])
    tokens, outputs, inputs = x_shape[0], out_shape[1], x_shape[1]
    rows = np.int64(carray(x, 1, np.uint8).ctypes.data)
    products = np.int64(carray(out, 1, np.uint8).ctypes.data)
    begin, end = columns_of(outputs, part, parts), columns_of(outputs, part + 1, parts)
    # The first output of this thread's next part, provided that all threads are equally fast.
    next_part = min(part + max(1, parts // ffi.PARTS_PER_THREAD), parts - 1)
    next_begin = columns_of(outputs, next_part, parts)
    block = rows_of_a_block(inputs)
    for t in range(0, tokens, block):
        _multiply_outputs(
            rows + 4 * inputs * t,
            min(block, tokens - t),
            inputs,
            addresses,
            settings,
            products + 4 * outputs * t,
            outputs,
            begin,
            end,
            next_begin,
            first,
        )
