"""Scales, minima and zeros of a group of outputs, as float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from cpu_kernels.llvm_intrinsics import COMPILED, floats
from cpu_kernels.tiles import GRAIN, TILE

# Types that they are kept in; E8M0 is the exponent of a power of two.
FLOAT32, BFLOAT16, FLOAT16, UINT8, INT8, E8M0 = range(6)
_BITS = (32, 16, 16, 8, 8, 8)
_COLUMNS = TILE.columns
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_FLOATS, _INTS = (ir.VectorType(t, GRAIN) for t in (ir.FloatType(), _I32))


def _ints(value: int) -> Any:
    return ir.Constant(_INTS, [value] * GRAIN)


def _as_floats(b: Any, kind: int, raw: Any) -> Any:
    if kind == FLOAT32:
        return b.bitcast(raw, _FLOATS)
    if kind == FLOAT16:
        return b.fpext(b.bitcast(raw, ir.VectorType(ir.HalfType(), GRAIN)), _FLOATS)
    if kind == INT8:
        return b.sitofp(b.sext(raw, _INTS), _FLOATS)
    wide = b.zext(raw, _INTS)
    if kind == UINT8:
        return b.uitofp(wide, _FLOATS)
    if kind == BFLOAT16:
        return b.bitcast(b.shl(wide, _ints(16)), _FLOATS)
    # A byte of 0 is 2 ** -127, which has no exponent of its own in float32.
    exponents, least = b.shl(wide, _ints(23)), _ints(1 << 22)
    larger = b.icmp_unsigned(">", exponents, least)
    return b.bitcast(b.select(larger, exponents, least), _FLOATS)


@intrinsic
def _expand(typing: Any, kind: Any, source: Any, count: Any, out: Any) -> Any:
    """`count` numbers of a type -> float32; count is a multiple of GRAIN, the others addresses."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        kind, source, count, out = args
        for known, bits in enumerate(_BITS):
            raw = ir.VectorType(ir.IntType(bits), GRAIN).as_pointer()
            with (
                b.if_then(b.icmp_signed("==", kind, _I64(known))),
                cgutils.for_range_slice(b, _I64(0), count, _I64(GRAIN), _I64) as (i, _),
            ):
                place = b.add(source, b.mul(i, _I64(bits // 8)))
                numbers = _as_floats(b, known, b.load(b.inttoptr(place, raw), align=1))
                target = b.add(out, b.mul(i, _I64(4)))
                b.store(numbers, b.inttoptr(target, _FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@njit(types.int64(types.int64, types.int64), **COMPILED)
def nbytes(kind: int, rows: int) -> int:
    """Bytes of rows of a group of outputs."""
    size = 1
    if kind == FLOAT32:
        size = 4
    elif kind in (BFLOAT16, FLOAT16):
        size = 2
    return rows * _COLUMNS * size


@njit(**COMPILED)
def expand(kind: int, source: int, rows: int, factors: int, count: int, out: int) -> None:
    """Scales [rows, C] of a type, times float16 factors [count, C] -> float32.

    Args:
        factors: the address, where count isn't 0; each counts for rows / count of the scales.
    """
    _expand(kind, source, rows * _COLUMNS, out)
    if count == 0:
        return
    factor = np.empty(_COLUMNS, np.float32)
    each = rows // count
    for f in range(count):
        _expand(FLOAT16, factors + nbytes(FLOAT16, f), _COLUMNS, factor.ctypes.data)
        for r in range(f * each, (f + 1) * each):
            row = floats(out + nbytes(FLOAT32, r), _COLUMNS)
            for c in range(_COLUMNS):
                row[c] *= factor[c]
