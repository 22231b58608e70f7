"""Stored (quantised) weights widened to float32, a row at a time.

Layouts of GGML's blocks: ggml-common.h and ggml-quants.c. Every product of a scale and a code is
exact in float32, so the numbers are those of any other correct widening, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from cpu_kernels.llvm_intrinsics import COMPILED, pointer

# Values of a block, and its bytes.
BLOCKS = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
KINDS = {name: i for i, name in enumerate(BLOCKS)}
_Q4_0, _Q4_1, _Q5_0, _Q5_1, _Q8_0, _Q4_K, _Q5_K, _Q6_K = range(8)
_SIZES = tuple(BLOCKS.values())

LANES = 16  # numbers that are widened together
_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_NONE, _MINUS_8, _MINUS_16, _MINUS_32 = (np.float32(-offset) for offset in (0, 8, 16, 32))
_KEEP = np.float32(-0.0)  # added to a number, it leaves even a zero's sign


@intrinsic
def _half(typing: Any, address: Any) -> Any:
    """The float16 at an address, as float32."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        value = b.load(b.inttoptr(args[0], ir.HalfType().as_pointer()), align=1)
        return b.fpext(value, ir.FloatType())

    return types.float32(types.int64), codegen


def _load(b: Any, address: Any, element: Any) -> Any:
    return b.load(b.inttoptr(address, ir.VectorType(element, LANES).as_pointer()), align=1)


def _splat(b: Any, value: Any) -> Any:
    kind = ir.VectorType(value.type, LANES)
    lane = b.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_I32, 0))
    zeros = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
    return b.shuffle_vector(lane, lane, zeros)


def _finish(b: Any, floats: Any, scale: Any, minimum: Any, out: Any) -> None:
    """floats * scale + minimum, stored. A minimum of -0.0 changes nothing."""
    numbers = b.fadd(b.fmul(floats, _splat(b, scale)), _splat(b, minimum))
    b.store(numbers, b.inttoptr(out, numbers.type.as_pointer()), align=4)


@intrinsic
def _codes(
    typing: Any,
    low: Any,
    shift: Any,
    high: Any,
    high_shift: Any,
    high_mask: Any,
    offset: Any,
    scale: Any,
    minimum: Any,
    out: Any,
) -> Any:
    """16 codes, four bits of each in the bytes at `low` and up to four more in those at `high`:
    (code + offset) * scale + minimum."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        low, shift, high, high_shift, high_mask, offset, scale, minimum, out = args

        def field(address: Any, shift: Any, mask: Any) -> Any:
            shifted = b.lshr(_load(b, address, _I8), _splat(b, b.trunc(shift, _I8)))
            return b.and_(shifted, _splat(b, b.trunc(mask, _I8)))

        four = ir.Constant(ir.VectorType(_I8, LANES), [4] * LANES)
        upper = b.shl(field(high, high_shift, high_mask), four)
        codes = b.or_(field(low, shift, ir.Constant(_I64, 15)), upper)
        floats = b.uitofp(b.zext(codes, ir.VectorType(_I32, LANES)), _FLOATS)
        _finish(b, b.fadd(floats, _splat(b, offset)), scale, minimum, out)
        return context.get_dummy_value()

    integers, floats = [types.int64] * 5, [types.float32] * 3
    return types.void(*integers, *floats, types.int64), codegen


@intrinsic
def _five_bits(
    typing: Any,
    low: Any,
    shift: Any,
    high: Any,
    first: Any,
    offset: Any,
    scale: Any,
    minimum: Any,
    out: Any,
) -> Any:
    """As _codes, the fifth bits being those from bit `first` on of the 32-bit word at `high`."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        low, shift, high, first, offset, scale, minimum, out = args
        wide = ir.VectorType(_I32, LANES)
        word = b.load(b.inttoptr(high, _I32.as_pointer()), align=1)
        word = b.lshr(word, b.trunc(first, _I32))
        bits = b.lshr(_splat(b, word), ir.Constant(wide, list(range(LANES))))
        bits = b.and_(bits, ir.Constant(wide, [1] * LANES))
        upper = b.shl(bits, ir.Constant(wide, [4] * LANES))
        nibbles = b.lshr(_load(b, low, _I8), _splat(b, b.trunc(shift, _I8)))
        nibbles = b.and_(nibbles, ir.Constant(ir.VectorType(_I8, LANES), [15] * LANES))
        floats = b.uitofp(b.or_(b.zext(nibbles, wide), upper), _FLOATS)
        _finish(b, b.fadd(floats, _splat(b, offset)), scale, minimum, out)
        return context.get_dummy_value()

    integers, floats = [types.int64] * 4, [types.float32] * 3
    return types.void(*integers, *floats, types.int64), codegen


@intrinsic
def _signed(typing: Any, raw: Any, scale: Any, out: Any) -> Any:
    """16 numbers of int8, times a scale."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        raw, scale, out = args
        floats = b.sitofp(b.sext(_load(b, raw, _I8), ir.VectorType(_I32, LANES)), _FLOATS)
        _finish(b, floats, scale, ir.Constant(ir.FloatType(), -0.0), out)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64), codegen


@njit(**COMPILED)
def _bytes(address: int, n: int) -> np.ndarray:
    return carray(pointer(address), n, np.uint8)


@njit(**COMPILED)
def _k_scale(raw: np.ndarray, i: int) -> tuple[float, float]:
    """Scale and minimum of group i of 8, six bits each, in 12 bytes."""
    if i < 4:
        return np.float32(raw[i] & 63), np.float32(raw[i + 4] & 63)
    low = (raw[i + 4] & 15) | ((raw[i - 4] >> 6) << 4)
    high = (raw[i + 4] >> 4) | ((raw[i] >> 6) << 4)
    return np.float32(low), np.float32(high)


@njit(**COMPILED)
def _k_block(block: int, codes: int, high: int, has_high: int, out: int) -> None:
    """Q4_K, or Q5_K with the fifth bits at `high`."""
    d, least, scales = _half(block), _half(block + 2), _bytes(block + 4, 12)
    for i in range(8):
        scale, minimum = _k_scale(scales, i)
        scale, minimum = d * scale, -(least * minimum)
        for half in (0, 16):
            low = codes + 32 * (i // 2) + half
            target = out + 4 * (32 * i + half)
            _codes(low, 4 * (i % 2), high + half, i, has_high, _NONE, scale, minimum, target)


@njit(**COMPILED)
def _q6_block(block: int, out: int) -> None:
    d, scales = _half(block + 208), carray(pointer(block + 192), 16, np.int8)
    for i in range(16):
        group, half = i // 2, 16 * (i % 2)
        low = block + 64 * (group // 4) + 32 * (group % 2) + half
        high = block + 128 + 32 * (group // 4) + half
        shift, scale = 4 * (group % 4 // 2), d * np.float32(scales[i])
        _codes(low, shift, high, 2 * (group % 4), 3, _MINUS_32, scale, _KEEP, out + 64 * i)


@njit(**COMPILED)
def _small_block(kind: int, block: int, out: int) -> None:
    """32 numbers of one of the kinds whose blocks have so many."""
    d = _half(block)
    if kind == _Q8_0:
        _signed(block + 2, d, out)
        _signed(block + 18, d, out + 64)
    elif kind in (_Q4_0, _Q4_1):
        offset = _MINUS_8 if kind == _Q4_0 else _NONE
        minimum = _KEEP if kind == _Q4_0 else _half(block + 2)
        raw = block + (2 if kind == _Q4_0 else 4)
        _codes(raw, 0, raw, 0, 0, offset, d, minimum, out)
        _codes(raw, 4, raw, 0, 0, offset, d, minimum, out + 64)
    else:
        offset = _MINUS_16 if kind == _Q5_0 else _NONE
        minimum = _KEEP if kind == _Q5_0 else _half(block + 2)
        high = block + (2 if kind == _Q5_0 else 4)
        _five_bits(high + 4, 0, high, 0, offset, d, minimum, out)
        _five_bits(high + 4, 4, high, 16, offset, d, minimum, out + 64)


@njit(**COMPILED)
def widen_row(kind: int, address: int, inputs: int, out: int) -> None:
    """A row of blocks at an address, as float32.

    Args:
        kind: a value of KINDS.
        inputs: numbers in the row, a multiple of a block's.
        out: address of so many floats.
    """
    values, size = _SIZES[kind]
    for n in range(inputs // values):
        block, target = address + size * n, out + 4 * values * n
        if values == 32:
            _small_block(kind, block, target)
        elif kind == _Q6_K:
            _q6_block(block, target)
        elif kind == _Q5_K:
            _k_block(block, block + 48, block + 16, 1, target)
        else:
            _k_block(block, block + 16, block + 16, 0, target)
