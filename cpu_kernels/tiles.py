"""The two steps that every product here is made of, in LLVM's own language.

`pack` turns sixteen rows into columns; `multiply` takes rows times sixteen columns, in tiles of up
to six rows whose sums all stay in registers, of which there are sixteen of eight floats (AVX2).
A sum is one chain over its row: no compiler gives it another order, and no other row or column
changes its bits.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import cfunc, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from cpu_kernels.machine import COMPILED, named

LANES = 8  # floats of a register
WIDE = 2 * LANES  # columns of a tile
TALLEST = 6  # rows of a tile: 12 registers of sums, 2 of columns, one of a row
LINE = 64  # bytes
_FLOAT = 4

_F32, _I64, _I32 = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_V = ir.VectorType(_F32, LANES)
_ZERO = ir.Constant(_V, [0.0] * LANES)


def _load(b: Any, at: Any, kind: Any = _V) -> Any:
    return b.load(b.inttoptr(at, kind.as_pointer()), align=_FLOAT)


def _store(b: Any, value: Any, at: Any) -> None:
    b.store(value, b.inttoptr(at, _V.as_pointer()), align=_FLOAT)


def _shuffle(b: Any, x: Any, y: Any, lanes: list[int]) -> Any:
    """Lanes of x (0 to 7) and of y (8 to 15)."""
    return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(_I32, LANES), lanes))


def _broadcast(b: Any, value: Any) -> Any:
    """A register of one float."""
    lone = b.insert_element(ir.Constant(_V, ir.Undefined), value, _I32(0))
    return _shuffle(b, lone, lone, [0] * LANES)


def _fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once where the machine can."""
    kind = ir.FunctionType(_V, [_V, _V, _V])
    return b.call(cgutils.get_or_insert_function(b.module, kind, "llvm.fmuladd.v8f32"), [x, y, z])


def _prefetch(b: Any, at: Any) -> None:
    """Brings a line into the second cache; any address will do."""
    line = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [line, _I32, _I32, _I32])
    function = b.module.declare_intrinsic("llvm.prefetch", [line], kind)
    b.call(function, [b.inttoptr(at, line), _I32(0), _I32(2), _I32(1)])


def _prefetch_lines(b: Any, place: Any, lines: Any) -> None:
    """Prefetches lines from a place on, and moves it on."""
    with cgutils.for_range(b, lines):
        _prefetch(b, b.load(place))
        b.store(b.add(b.load(place), _I64(LINE)), place)


def _transposed(b: Any, rows: list[Any]) -> list[Any]:
    """Eight registers of eight: by ones, by twos, by fours."""
    ones = [
        _shuffle(b, rows[i], rows[i + 1], lanes)
        for i in (0, 2, 4, 6)
        for lanes in ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15])
    ]
    twos = [
        _shuffle(b, ones[i], ones[i + 2], lanes)
        for i in (0, 1, 4, 5)
        for lanes in ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15])
    ]
    return [
        _shuffle(b, twos[i], twos[i + 4], lanes)
        for lanes in ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])
        for i in range(4)
    ]


@intrinsic
def _pack(typing: Any, rows: Any, step: Any, n: Any, columns: Any, ahead: Any, lines: Any) -> Any:
    """Rows [16, n], step bytes apart, to columns [n, 16]; n is a multiple of eight.

    Meanwhile prefetches so many lines from ahead on for each eight of n.
    """

    def make(context: Any, b: Any, signature: Any, args: Any) -> Any:
        rows, step, n, columns, ahead, lines = args
        far = cgutils.alloca_once(b, _I64)
        b.store(ahead, far)
        places = [b.add(rows, b.mul(_I64(r), step)) for r in range(WIDE)]
        size = b.mul(n, _I64(_FLOAT))
        with cgutils.for_range_slice(b, _I64(0), size, _I64(_FLOAT * LANES), _I64) as (at, _):
            to = b.add(columns, b.mul(at, _I64(WIDE)))
            _prefetch_lines(b, far, lines)
            for half in (0, LANES):
                block = [_load(b, b.add(place, at)) for place in places[half : half + LANES]]
                for i, column in enumerate(_transposed(b, block)):
                    _store(b, column, b.add(to, _I64(_FLOAT * (WIDE * i + half))))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), make


def _tile(b: Any, rows: int, args: list[Any]) -> None:
    x, x_step, columns, step, n, out, out_step, adds, ahead, lines = args
    starts = [b.add(x, b.mul(_I64(r), x_step)) for r in range(rows)]
    sums = [[cgutils.alloca_once(b, _V) for _ in range(2)] for _ in range(rows)]
    for total in (total for row in sums for total in row):
        b.store(_ZERO, total)
    here, far = (cgutils.alloca_once(b, _I64) for _ in range(2))
    b.store(columns, here)
    b.store(ahead, far)

    def take(at: Any) -> None:
        """A row of the columns, and what of x it is multiplied with."""
        place = b.load(here)
        halves = [_load(b, place), _load(b, b.add(place, _I64(_FLOAT * LANES)))]
        b.store(b.add(place, step), here)
        for start, row in zip(starts, sums, strict=True):
            factor = _broadcast(b, _load(b, b.add(start, at), _F32))
            for half, total in zip(halves, row, strict=True):
                b.store(_fma(b, factor, half, b.load(total)), total)

    # Eight at a time: the fewer other instructions, the better where two threads share a core.
    size = b.mul(n, _I64(_FLOAT))
    whole = b.and_(size, _I64(-_FLOAT * LANES))
    with cgutils.for_range_slice(b, _I64(0), whole, _I64(_FLOAT * LANES), _I64) as (at, _):
        _prefetch_lines(b, far, lines)
        for i in range(LANES):
            take(b.add(at, _I64(_FLOAT * i)))
    with cgutils.for_range_slice(b, whole, size, _I64(_FLOAT), _I64) as (at, _):
        take(at)
    places = [
        [b.add(b.add(out, b.mul(_I64(r), out_step)), _I64(_FLOAT * LANES * i)) for i in range(2)]
        for r in range(rows)
    ]
    all_of = [pair for r in range(rows) for pair in zip(sums[r], places[r], strict=True)]
    with b.if_then(b.icmp_signed("!=", adds, _I64(0))):
        for total, to in all_of:
            b.store(b.fadd(_load(b, to), b.load(total)), total)
    for total, to in all_of:
        _store(b, b.load(total), to)


@intrinsic
def _tiles(
    typing: Any,
    rows: Any,
    x: Any,
    x_step: Any,
    columns: Any,
    step: Any,
    n: Any,
    out: Any,
    out_step: Any,
    adds: Any,
    ahead: Any,
    lines: Any,
) -> Any:
    """x [R, n] @ columns [n, 16] -> out [R, 16], or added to it; R is 1 to 6, steps are in bytes.

    Meanwhile prefetches so many lines from ahead on for each eight of n.
    """

    def make(context: Any, b: Any, signature: Any, args: Any) -> Any:
        for count in range(1, TALLEST + 1):
            with b.if_then(b.icmp_signed("==", args[0], _I64(count))):
                _tile(b, count, args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 11), make


@njit(**COMPILED)
def tiles_of(rows: int) -> int:
    """How many tiles these rows are."""
    return (rows + TALLEST - 1) // TALLEST


_PACK = types.void(*[types.int64] * 6)
_MULTIPLY = types.void(*[types.int64] * 11)


@cfunc(_PACK, **COMPILED)
def _pack_rows(rows: int, step: int, n: int, columns: int, ahead: int, lines: int) -> None:
    """`_pack`, as a C function."""
    _pack(rows, step, n, columns, ahead, lines)


@cfunc(_MULTIPLY, **COMPILED)
def _multiply(
    rows: int,
    x: int,
    x_step: int,
    columns: int,
    step: int,
    n: int,
    out: int,
    out_step: int,
    adds: int,
    ahead: int,
    lines: int,
) -> None:
    """x [R, n] @ columns [n, 16] -> out [R, 16] for any R, in tiles that are alike.

    Args:
        rows: R.
        x: address of x.
        x_step: bytes from a row of x to the next.
        columns: address of the columns.
        step: bytes from a row of the columns to the next.
        n: numbers in a row of x.
        out: address of out.
        out_step: bytes from a row of out to the next.
        adds: 0 to write out, anything else to add to it.
        ahead: address from which on lines are prefetched meanwhile.
        lines: how many, for each eight of n.
    """
    tiles = tiles_of(rows)
    for t in range(tiles):
        tall = (rows + tiles - t - 1) // (tiles - t)
        share = lines * (t + 1) // tiles - lines * t // tiles
        _tiles(tall, x, x_step, columns, step, n, out, out_step, adds, ahead, share)
        x += tall * x_step
        out += tall * out_step
        ahead += n // LANES * share * LINE
        rows -= tall


pack = named("jaxserve_pack", _pack_rows, _PACK)
multiply = named("jaxserve_multiply", _multiply, _MULTIPLY)
