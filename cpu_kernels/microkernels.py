"""The two micro-kernels that matmul and attention are made of, generated as LLVM IR.

`pack` transposes sixteen rows into columns. `multiply` computes rows times the columns of a tile,
in tiles whose sums stay in registers (see tiles.py). Each sum is one chain of additions along its
row, in an order that the compiler may not change. Its bits therefore depend on that row and that
column only.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import cfunc, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from cpu_kernels.llvm_intrinsics import COMPILED, external_function
from cpu_kernels.tiles import CACHE_LINE, GRAIN, TILE

STEP = 8  # inputs that a loop's iteration takes; rows are transposed in squares of so many floats
_FLOAT = 4  # bytes
_TILE_ROWS = TILE.rows

_F32, _I64, _I32 = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(_F32, TILE.lanes)
_SQUARE_ROW = ir.VectorType(_F32, STEP)
_ZERO = ir.Constant(_VECTOR, [0.0] * TILE.lanes)


def load_vector(b: Any, address: Any, kind: Any = _VECTOR) -> Any:
    return b.load(b.inttoptr(address, kind.as_pointer()), align=_FLOAT)


def store_vector(b: Any, value: Any, address: Any) -> None:
    b.store(value, b.inttoptr(address, value.type.as_pointer()), align=_FLOAT)


def _shuffle(b: Any, x: Any, y: Any, lanes: list[int]) -> Any:
    """A vector of selected lanes of x (numbered from 0) and of y (numbered on from there)."""
    return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(_I32, len(lanes)), lanes))


def broadcast(b: Any, value: Any) -> Any:
    """A vector with the same float in each lane."""
    first_lane = b.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, _I32(0))
    return _shuffle(b, first_lane, first_lane, [0] * TILE.lanes)


def fused_multiply_add(b: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once on processors with fused multiply-add."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, _VECTOR])
    name = f"llvm.fmuladd.v{TILE.lanes}f32"
    return b.call(cgutils.get_or_insert_function(b.module, kind, name), [x, y, z])


def prefetch_line(b: Any, address: Any) -> None:
    """Prefetches a cache line into the second-level cache; an invalid address does no harm."""
    line = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [line, _I32, _I32, _I32])
    function = b.module.declare_intrinsic("llvm.prefetch", [line], kind)
    b.call(function, [b.inttoptr(address, line), _I32(0), _I32(2), _I32(1)])


def _prefetch_lines(b: Any, position: Any, lines: Any) -> None:
    """Prefetches this many cache lines from the address in a variable on, and advances it."""
    with cgutils.for_range(b, lines):
        prefetch_line(b, b.load(position))
        b.store(b.add(b.load(position), _I64(CACHE_LINE)), position)


def _transpose(b: Any, rows: list[Any]) -> list[Any]:
    """The transpose of eight vectors: swaps single lanes, then pairs, then groups of four."""
    singles = [
        _shuffle(b, rows[i], rows[i + 1], lanes)
        for i in (0, 2, 4, 6)
        for lanes in ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15])
    ]
    pairs = [
        _shuffle(b, singles[i], singles[i + 2], lanes)
        for i in (0, 1, 4, 5)
        for lanes in ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15])
    ]
    return [
        _shuffle(b, pairs[i], pairs[i + 4], lanes)
        for lanes in ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])
        for i in range(4)
    ]


@intrinsic
def _pack(
    typing: Any,
    rows: Any,
    row_stride: Any,
    n: Any,
    columns: Any,
    prefetch_from: Any,
    prefetch_lines: Any,
) -> Any:
    """Transposes rows [GRAIN, n] into a tile's columns; see `pack`."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        rows, row_stride, n, columns, prefetch_from, prefetch_lines = args
        prefetch = cgutils.alloca_once(b, _I64)
        b.store(prefetch_from, prefetch)
        row_addresses = [b.add(rows, b.mul(_I64(r), row_stride)) for r in range(GRAIN)]
        size = b.mul(n, _I64(_FLOAT))
        with cgutils.for_range_slice(b, _I64(0), size, _I64(_FLOAT * STEP), _I64) as (offset, _):
            target = b.add(columns, b.mul(offset, _I64(TILE.columns)))
            _prefetch_lines(b, prefetch, prefetch_lines)
            for first in range(0, GRAIN, STEP):
                square = [
                    load_vector(b, b.add(address, offset), _SQUARE_ROW)
                    for address in row_addresses[first : first + STEP]
                ]
                for i, column in enumerate(_transpose(b, square)):
                    place = _I64(_FLOAT * (TILE.columns * i + first))
                    store_vector(b, column, b.add(target, place))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), codegen


def _multiply_tile(b: Any, rows: int, args: list[Any]) -> None:
    """Generates the product of a tile with this number of rows; see `_tile` for the arguments."""
    x, x_stride, columns, stride, n, out, out_stride, adds, prefetch_from, prefetch_lines = args
    vectors = range(TILE.vectors)
    x_rows = [b.add(x, b.mul(_I64(r), x_stride)) for r in range(rows)]
    sums = [[cgutils.alloca_once(b, _VECTOR) for _ in vectors] for _ in range(rows)]
    for total in (total for row in sums for total in row):
        b.store(_ZERO, total)
    column_row, prefetch = (cgutils.alloca_once(b, _I64) for _ in range(2))
    b.store(columns, column_row)
    b.store(prefetch_from, prefetch)

    def accumulate(offset: Any) -> None:
        """Adds the product of one element of each row and one row of the columns."""
        address = b.load(column_row)
        loaded = [load_vector(b, b.add(address, _I64(_FLOAT * TILE.lanes * v))) for v in vectors]
        b.store(b.add(address, stride), column_row)
        for x_row, row in zip(x_rows, sums, strict=True):
            factor = broadcast(b, load_vector(b, b.add(x_row, offset), _F32))
            for column, total in zip(loaded, row, strict=True):
                b.store(fused_multiply_add(b, factor, column, b.load(total)), total)

    # Unrolled: the fewer other instructions, the better where two threads share a core.
    size = b.mul(n, _I64(_FLOAT))
    unrolled = b.and_(size, _I64(-_FLOAT * STEP))
    with cgutils.for_range_slice(b, _I64(0), unrolled, _I64(_FLOAT * STEP), _I64) as (offset, _):
        _prefetch_lines(b, prefetch, prefetch_lines)
        for i in range(STEP):
            accumulate(b.add(offset, _I64(_FLOAT * i)))
    with cgutils.for_range_slice(b, unrolled, size, _I64(_FLOAT), _I64) as (offset, _):
        accumulate(offset)
    targets = [
        [
            b.add(b.add(out, b.mul(_I64(r), out_stride)), _I64(_FLOAT * TILE.lanes * v))
            for v in vectors
        ]
        for r in range(rows)
    ]
    results = [pair for r in range(rows) for pair in zip(sums[r], targets[r], strict=True)]
    with b.if_then(b.icmp_signed("!=", adds, _I64(0))):
        for total, target in results:
            b.store(b.fadd(load_vector(b, target), b.load(total)), total)
    for total, target in results:
        store_vector(b, b.load(total), target)


@intrinsic
def _tile(
    typing: Any,
    rows: Any,
    x: Any,
    x_stride: Any,
    columns: Any,
    stride: Any,
    n: Any,
    out: Any,
    out_stride: Any,
    adds: Any,
    prefetch_from: Any,
    prefetch_lines: Any,
) -> Any:
    """One tile of `multiply`: R is at most TILE.rows, and the arguments are the same."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        for count in range(1, TILE.rows + 1):
            with b.if_then(b.icmp_signed("==", args[0], _I64(count))):
                _multiply_tile(b, count, args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 11), codegen


@njit(**COMPILED)
def tile_count(rows: int) -> int:
    """The number of tiles that this many rows take."""
    return (rows + _TILE_ROWS - 1) // _TILE_ROWS


_PACK = types.void(*[types.int64] * 6)
_MULTIPLY = types.void(*[types.int64] * 11)


@cfunc(_PACK, **COMPILED)
def _pack_rows(
    rows: int, row_stride: int, n: int, columns: int, prefetch_from: int, prefetch_lines: int
) -> None:
    """Transposes rows [GRAIN, n] into columns of a tile [n, TILE.columns].

    Args:
        rows: address of the rows, float32.
        row_stride: bytes from a row to the next.
        n: floats in a row, a multiple of STEP.
        columns: address of the first of the columns.
        prefetch_from: address from which on cache lines are prefetched meanwhile.
        prefetch_lines: cache lines to prefetch for every STEP of n.
    """
    _pack(rows, row_stride, n, columns, prefetch_from, prefetch_lines)


@cfunc(_MULTIPLY, **COMPILED)
def _multiply_rows(
    rows: int,
    x: int,
    x_stride: int,
    columns: int,
    stride: int,
    n: int,
    out: int,
    out_stride: int,
    adds: int,
    prefetch_from: int,
    prefetch_lines: int,
) -> None:
    """x [R, n] @ columns [n, TILE.columns] -> out for any R, in tiles of nearly equal size.

    Args:
        rows: R.
        x: address of x, float32, as are columns and out.
        x_stride: bytes from a row of x to the next.
        columns: address of the columns.
        stride: bytes from a row of the columns to the next.
        n: floats in a row of x.
        out: address of out.
        out_stride: bytes from a row of out to the next.
        adds: 0 to overwrite out, anything else to add to it.
        prefetch_from: address from which on cache lines are prefetched meanwhile.
        prefetch_lines: cache lines to prefetch for every STEP of n, over all tiles together.
    """
    tiles = tile_count(rows)
    for t in range(tiles):
        tile_rows = (rows + tiles - t - 1) // (tiles - t)
        lines = prefetch_lines * (t + 1) // tiles - prefetch_lines * t // tiles
        _tile(
            tile_rows,
            x,
            x_stride,
            columns,
            stride,
            n,
            out,
            out_stride,
            adds,
            prefetch_from,
            lines,
        )
        x += tile_rows * x_stride
        out += tile_rows * out_stride
        prefetch_from += n // STEP * lines * CACHE_LINE
        rows -= tile_rows


pack = external_function("jaxserve_pack", _pack_rows, _PACK)
multiply = external_function("jaxserve_multiply", _multiply_rows, _MULTIPLY)
