"""Rows divided by their root mean square, for any number of rows.

XLA sums the squares of a row in an order that depends on the number of rows. Here it depends on
their length alone, so that a row has the same bits in any batch.
"""

from __future__ import annotations

import numpy as np
from numba import carray, cfunc, njit

from cpu_kernels import ffi
from cpu_kernels.llvm_intrinsics import COMPILED, floats

# The compiler reorders the sum to vectorise it, in one way for every row.
_FAST = {"reassoc", "contract", "nsz"}


@njit(fastmath=_FAST, **COMPILED)
def _mean_square(row: np.ndarray) -> float:
    total = np.float32(0)
    for value in row:
        total += value * value
    return total / np.float32(len(row))


@cfunc(ffi.PART, **COMPILED)
def normalize_part(address: int, part: int, parts: int) -> None:
    """One part of a call, some of the rows: x [T, I], epsilon [1] -> [T, I]."""
    frame = ffi.read_frame(address)
    x, shape = ffi.argument(frame, 0)
    epsilon, _ = ffi.argument(frame, 1)
    out, _ = ffi.result(frame, 0)
    tokens, inputs = shape[0], shape[1]
    rows = np.int64(carray(x, 1, np.float32).ctypes.data)
    normalized = np.int64(carray(out, 1, np.float32).ctypes.data)
    least = carray(epsilon, 1, np.float32)[0]
    for t in range(tokens * part // parts, tokens * (part + 1) // parts):
        row = floats(rows + 4 * inputs * t, inputs)
        target = floats(normalized + 4 * inputs * t, inputs)
        factor = np.float32(1) / np.sqrt(_mean_square(row) + least)
        for i in range(inputs):
            target[i] = row[i] * factor
