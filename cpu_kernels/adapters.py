"""Low-rank adapters on a product, for rows of different adapters: y += (x @ down) @ up.

Rows of one adapter are multiplied together, a few at a time, so that its numbers are read once for
them. An element's sums have an order that depends on its own row and adapter alone: a row has the
same bits in any batch.
"""

from __future__ import annotations

import numpy as np
from numba import carray, cfunc, njit

from cpu_kernels import ffi
from cpu_kernels.llvm_intrinsics import COMPILED
from cpu_kernels.microkernels import multiply
from cpu_kernels.tiles import TILE

_COLUMNS = TILE.columns
_ROWS = 2 * TILE.rows  # most rows that are multiplied together


@njit(**COMPILED)
def _run_end(groups: np.ndarray, first: int) -> int:
    """The end of the rows from `first` on that are multiplied together."""
    end = first + 1
    while end < len(groups) and end < first + _ROWS and groups[end] == groups[first]:
        end += 1
    return end


@njit(**COMPILED)
def _gathered(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Some rows of x; a view where they follow each other."""
    first = rows[0]
    for nth, row in enumerate(rows):
        if row != first + nth:
            chosen = np.empty((len(rows), x.shape[1]), np.float32)
            for at, one in enumerate(rows):
                chosen[at] = x[one]
            return chosen
    return x[first : first + len(rows)]


@njit(**COMPILED)
def _shrink(x: np.ndarray, down: np.ndarray, rank: int) -> np.ndarray:
    """x [R, I] @ down [I, rank], which lies in a flat array; columns after the rank are noise."""
    inputs = x.shape[1]
    low = np.empty((len(x), (rank + _COLUMNS - 1) // _COLUMNS * _COLUMNS), np.float32)
    for c in range(0, rank, _COLUMNS):
        columns, target = down.ctypes.data + 4 * c, low.ctypes.data + 4 * c
        multiply(
            len(x),
            x.ctypes.data,
            x.strides[0],
            columns,
            4 * rank,
            inputs,
            target,
            low.strides[0],
            0,
            0,
            0,
        )
    return low


@njit(**COMPILED)
def _expand(
    low: np.ndarray,  # [R, rank]
    up: np.ndarray,  # [P, M, K, C]
    spans: np.ndarray,  # [N + 1]
    touched: np.ndarray,  # [P, M]
    out: np.ndarray,  # [T, O]
    rows: np.ndarray,  # [R]
) -> None:
    tile = np.empty((len(rows), _COLUMNS), np.float32)
    outputs = out.shape[1]
    for p in range(len(touched)):
        adds = 0
        for m in range(touched.shape[1]):
            part = touched[p, m]
            if part < 0:
                break
            first, end = spans[part], spans[part + 1]
            if first == end:
                continue
            multiply(
                len(rows),
                low.ctypes.data + 4 * first,
                low.strides[0],
                up[p, m].ctypes.data,
                4 * _COLUMNS,
                end - first,
                tile.ctypes.data,
                tile.strides[0],
                adds,
                0,
                0,
            )
            adds = 1
        if adds:
            begin = p * _COLUMNS
            for at, row in enumerate(rows):
                for j in range(min(_COLUMNS, outputs - begin)):
                    out[row, begin + j] += tile[at, j]


@njit(**COMPILED)
def _adapt_part(frame: np.ndarray, part: int, parts: int) -> None:
    x, x_shape = ffi.argument(frame, 1)
    order, order_shape = ffi.argument(frame, 2)
    groups, _ = ffi.argument(frame, 3)
    down, down_shape = ffi.argument(frame, 4)
    up, up_shape = ffi.argument(frame, 5)
    spans, spans_shape = ffi.argument(frame, 6)
    touched, touched_shape = ffi.argument(frame, 7)
    y, y_shape = ffi.result(frame, 0)
    tokens, count = order_shape[0], up_shape[0]
    own = carray(x, (tokens, x_shape[1]), np.float32)
    places = carray(order, tokens, np.int32)
    kinds = carray(groups, tokens, np.int32)
    downs = carray(down, (count, down_shape[1]), np.float32)
    shape = (count, up_shape[1], up_shape[2], up_shape[3], up_shape[4])
    ups = carray(up, shape, np.float32)
    starts = carray(spans, (count, spans_shape[1]), np.int32)
    owners = carray(touched, (touched_shape[0], touched_shape[1]), np.int32)
    out = carray(y, (tokens, y_shape[1]), np.float32)
    first, nth = 0, 0
    while first < tokens and kinds[first] < count:
        end = _run_end(kinds, first)
        group = kinds[first]
        rank = starts[group, -1]
        if rank > 0:
            if nth % parts == part:
                rows = places[first:end]
                low = _gathered(own, rows)
                if down_shape[1] > 0:
                    low = _shrink(low, downs[group], rank)
                _expand(low, ups[group], starts[group], owners, out, rows)
            nth += 1
        first = end


@cfunc(ffi.PART, **COMPILED)
def adapt_part(address: int, part: int, parts: int) -> None:
    """One part of a call, some of the rows; see cpu_kernels.adapt for the arguments."""
    _adapt_part(ffi.read_frame(address), part, parts)


@njit(**COMPILED)
def is_small(frame: np.ndarray) -> bool:
    """Whether a call has too few rows for several threads."""
    _, shape = ffi.argument(frame, 2)
    groups, _ = ffi.argument(frame, 3)
    _, up_shape = ffi.argument(frame, 5)
    kinds = carray(groups, shape[0], np.int32)
    return (
        shape[0] == 0
        or kinds[0] >= up_shape[0]
        or _run_end(kinds, 0) >= shape[0]
        or (kinds[_run_end(kinds, 0)] >= up_shape[0])
    )
