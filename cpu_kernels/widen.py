"""Micro-kernels that read columns of codes: they widen them into float32 in registers, and multiply
rows by them or store them. Generated as LLVM IR, one for each kind of codes (see columns.py).

Every widened number is what the format defines, bit for bit, and every sum is the chain of
additions that `multiply` of microkernels.py makes, so that the results are those of the widened
matrix. A kernel is compiled when a matrix of its kind is packed first.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils
from numba.extending import intrinsic

from cpu_kernels.code_cache import checked_cache
from cpu_kernels.llvm_intrinsics import COMPILED, external_function
from cpu_kernels.microkernels import (
    STEP,
    broadcast,
    fused_multiply_add,
    load_vector,
    prefetch_line,
    store_vector,
)
from cpu_kernels.tiles import CACHE_LINE, TILE, processor_features

# Kinds of codes.
NIBBLES, FIVE_BITS, SIX_BITS, INT8, FP8, BFLOAT16, FLOAT16 = range(7)
# What becomes of a value: nothing; value * scale; value * scale + offset; (value - offset) * scale.
PLAIN, SCALED, ADDED, SUBTRACTED = range(4)
AFFINES = 4
VARIANTS = 7 * AFFINES
LOW_BITS = (4, 4, 4, 8, 8, 16, 16)  # of a code, as they lie in `codes`
HIGH_BITS = (0, 1, 2, 0, 0, 0, 0)  # as they lie in `high`

# The words of a kernel's arguments, in order.
NAMES = (
    "rows",  # of x, at most FUSED_ROWS; 0: the widened columns [n, C] are stored in `out`
    "x",  # address of x [R, I] float32, at its first input that counts
    "x_stride",  # bytes from a row of x to the next
    "codes",  # address of the codes of a group of outputs
    "high",
    "scales",  # address of [G, C] float32, as are offsets
    "offsets",
    "table",  # address of 16 floats
    "group",  # inputs that share a scale, a multiple of STEP
    "begin",  # the first input and the one after the last, multiples of STEP
    "end",
    "out",
    "out_stride",
    "adds",  # 0 to overwrite out, anything else to add to it
)
ARGUMENTS = len(NAMES)
FUSED_ROWS = TILE.fused_rows
_AHEAD = 4096  # bytes of codes from what is read to what is prefetched meanwhile

_I1, _I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
_F32 = ir.FloatType()
_LANES, _COLUMNS, _VECTORS = TILE.lanes, TILE.columns, TILE.vectors
_FLOATS, _INTS = (ir.VectorType(t, _LANES) for t in (_F32, _I32))
_FEATURES = processor_features()


def _ints(value: int, kind: Any = _INTS) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def _all(value: float) -> Any:
    return ir.Constant(_FLOATS, [value] * _LANES)


def _permute(b: Any, table: Any, index: Any) -> Any:
    """Lanes of a vector by an index of each lane, of which the lower bits count."""
    name = "llvm.x86.avx512.permvar.sf.512" if _LANES == 16 else "llvm.x86.avx2.permps"
    kind = ir.FunctionType(_FLOATS, [_FLOATS, _INTS])
    return b.call(cgutils.get_or_insert_function(b.module, kind, name), [table, index])


class _Table:
    """The 16 values of codes of four bits, in registers where the processor can look them up."""

    def __init__(self, b: Any, address: Any) -> None:
        self._address = address
        self._parts: list[Any] = []
        if _LANES == 16 or (_LANES == 8 and "avx2" in _FEATURES):
            places = range(0, 64, 4 * _LANES)
            self._parts = [load_vector(b, b.add(address, _I64(place))) for place in places]

    def look_up(self, b: Any, word: Any, k: int) -> Any:
        """The values of the codes k of words of eight."""
        index = b.lshr(word, _ints(4 * k)) if k else word
        found = [_permute(b, part, index) for part in self._parts]
        if len(found) == 1:
            return found[0]
        if found:
            top = b.shl(word, _ints(28 - 4 * k)) if k < STEP - 1 else word
            return b.select(b.icmp_signed("<", top, _ints(0)), found[1], found[0])
        index = b.and_(index, _ints(15))
        values = ir.Constant(_FLOATS, ir.Undefined)
        base = b.inttoptr(self._address, _F32.as_pointer())
        for lane in range(_LANES):
            place = b.gep(base, [b.extract_element(index, _I32(lane))])
            values = b.insert_element(values, b.load(place), _I32(lane))
        return values


def _load(b: Any, address: Any, kind: Any) -> Any:
    return b.load(b.inttoptr(address, kind.as_pointer()), align=1)


def _mask(b: Any, address: Any, vector: int) -> Any:
    """The bits of a vector's lanes, from the address of those of all columns on."""
    first = _LANES * vector
    whole = ir.IntType(max(8, _LANES))
    bits = _load(b, b.add(address, _I64(first // 8)), whole)
    bits = b.lshr(bits, whole(first % 8)) if first % 8 else bits
    if _LANES < 8:
        bits = b.trunc(bits, ir.IntType(_LANES))
    return b.bitcast(bits, ir.VectorType(_I1, _LANES))


class _Reader:
    """Reads the columns of STEP inputs at a time."""

    def __init__(self, b: Any, kind: int, table: Any, codes: Any, high: Any, i: Any) -> None:
        """Args: codes, high: addresses; i: the first of the inputs, a multiple of STEP."""
        self._kind, self._table = kind, table
        self._codes = b.add(codes, b.mul(i, _I64(LOW_BITS[kind] * _COLUMNS // 8)))
        self._planes = HIGH_BITS[kind]
        self._high = b.add(high, b.mul(i, _I64(self._planes * _COLUMNS // 8)))
        self._words: list[Any] = []
        if kind <= SIX_BITS:
            places = [_I64(4 * _LANES * v) for v in range(_VECTORS)]
            self._words = [_load(b, b.add(self._codes, place), _INTS) for place in places]

    def prefetch(self, b: Any) -> None:
        """Prefetches the codes that are read _AHEAD bytes later."""
        for line in range(0, LOW_BITS[self._kind] * _COLUMNS * STEP // 8, CACHE_LINE):
            prefetch_line(b, b.add(self._codes, _I64(_AHEAD + line)))

    def values(self, b: Any, k: int, vector: int) -> Any:
        """The values of one vector of the columns for input k."""
        if self._words:
            values = self._table.look_up(b, self._words[vector], k)
            for plane in range(self._planes):
                place = _I64((k * self._planes + plane) * _COLUMNS // 8)
                mask = _mask(b, b.add(self._high, place), vector)
                values = b.select(mask, b.fadd(values, _all(16 << plane)), values)
            return values
        size = LOW_BITS[self._kind] // 8
        address = b.add(self._codes, _I64(size * (k * _COLUMNS + vector * _LANES)))
        if size == 1:
            codes = _load(b, address, ir.VectorType(_I8, _LANES))
            if self._kind == INT8:
                return b.sitofp(b.sext(codes, _INTS), _FLOATS)
            # As float16, whose exponent has one bit more and a bias that is 8 more.
            wide = ir.VectorType(_I16, _LANES)
            halves = b.and_(b.shl(b.sext(codes, wide), _ints(7, wide)), _ints(0xBFFF, wide))
            halves = b.bitcast(halves, ir.VectorType(ir.HalfType(), _LANES))
            return b.fmul(b.fpext(halves, _FLOATS), _all(256))
        if self._kind == FLOAT16:
            return b.fpext(_load(b, address, ir.VectorType(ir.HalfType(), _LANES)), _FLOATS)
        codes = b.zext(_load(b, address, ir.VectorType(_I16, _LANES)), _INTS)
        return b.bitcast(b.shl(codes, _ints(16)), _FLOATS)


def _for_each_input(b: Any, kind: int, affine: int, at: Any, prefetches: bool, body: Any) -> None:
    """Calls body(first, k, columns) for each input first + k, first being a multiple of STEP, with
    the columns' widened numbers as vectors."""
    vectors = range(_VECTORS)
    table = _Table(b, at["table"]) if kind <= SIX_BITS else None
    position = cgutils.alloca_once(b, _I64)
    b.store(at["begin"], position)
    groups, done = b.append_basic_block("groups"), b.append_basic_block("done")
    b.branch(groups)
    b.position_at_end(groups)
    begin = b.load(position)
    number = b.sdiv(begin, at["group"])
    end = b.mul(b.add(number, _I64(1)), at["group"])
    end = b.select(b.icmp_signed("<", end, at["end"]), end, at["end"])
    row = b.mul(number, _I64(4 * _COLUMNS))

    def of_group(address: Any) -> list[Any]:
        places = [b.add(row, _I64(4 * _LANES * v)) for v in vectors]
        return [load_vector(b, b.add(address, place)) for place in places]

    scales = of_group(at["scales"]) if affine != PLAIN else []
    offsets = of_group(at["offsets"]) if affine in (ADDED, SUBTRACTED) else []
    with cgutils.for_range_slice(b, begin, end, _I64(STEP), _I64) as (first, _):
        reader = _Reader(b, kind, table, at["codes"], at["high"], first)
        if prefetches:
            reader.prefetch(b)
        for k in range(STEP):
            columns = []
            for v in vectors:
                value = reader.values(b, k, v)
                if affine == SUBTRACTED:
                    value = b.fsub(value, offsets[v])
                if affine == ADDED:  # the product is exact, so that it is rounded once either way
                    value = fused_multiply_add(b, value, scales[v], offsets[v])
                elif affine != PLAIN:
                    value = b.fmul(value, scales[v])
                columns.append(value)
            body(first, k, columns)
    b.store(end, position)
    b.cbranch(b.icmp_signed("<", end, at["end"]), groups, done)
    b.position_at_end(done)


def _store_columns(b: Any, kind: int, affine: int, at: Any) -> None:
    """The widened columns of inputs begin : end -> out [end - begin, C]."""

    def store(first: Any, k: int, columns: list[Any]) -> None:
        row = b.add(at["out"], b.mul(b.sub(first, at["begin"]), _I64(4 * _COLUMNS)))
        for v, column in enumerate(columns):
            store_vector(b, column, b.add(row, _I64(4 * (k * _COLUMNS + v * _LANES))))

    _for_each_input(b, kind, affine, at, False, store)


def _multiply_rows(b: Any, kind: int, affine: int, rows: int, at: Any) -> None:
    """x [R, end - begin] @ the columns of inputs begin : end -> out [R, C]."""
    start = b.sub(at["x"], b.mul(at["begin"], _I64(4)))
    x_rows = [b.add(start, b.mul(_I64(r), at["x_stride"])) for r in range(rows)]
    sums = [[cgutils.alloca_once(b, _FLOATS) for _ in range(_VECTORS)] for _ in range(rows)]
    for total in (total for row in sums for total in row):
        b.store(_all(0), total)

    def accumulate(first: Any, k: int, columns: list[Any]) -> None:
        place = b.add(b.mul(first, _I64(4)), _I64(4 * k))
        for x_row, row in zip(x_rows, sums, strict=True):
            factor = broadcast(b, _load(b, b.add(x_row, place), _F32))
            for column, total in zip(columns, row, strict=True):
                b.store(fused_multiply_add(b, factor, column, b.load(total)), total)

    _for_each_input(b, kind, affine, at, True, accumulate)
    for r, row in enumerate(sums):
        target = b.add(at["out"], b.mul(_I64(r), at["out_stride"]))
        for v, total in enumerate(row):
            place = b.add(target, _I64(4 * _LANES * v))
            with b.if_then(b.icmp_signed("!=", at["adds"], _I64(0))):
                b.store(b.fadd(load_vector(b, place), b.load(total)), total)
            store_vector(b, b.load(total), place)


@intrinsic(prefer_literal=True)
def _run(typing: Any, arguments: Any, variant: Any) -> Any:
    """The kernel of a variant, with the address of its arguments."""
    if not isinstance(variant, types.IntegerLiteral):
        return None
    kind, affine = divmod(variant.literal_value, AFFINES)

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        base = b.inttoptr(args[0], _I64.as_pointer())
        at = {name: b.load(b.gep(base, [_I64(n)])) for n, name in enumerate(NAMES)}
        with b.if_then(b.icmp_signed("==", at["rows"], _I64(0))):
            _store_columns(b, kind, affine, at)
        for count in range(1, FUSED_ROWS + 1):
            with b.if_then(b.icmp_signed("==", at["rows"], _I64(count))):
                _multiply_rows(b, kind, affine, count, at)
        return context.get_dummy_value()

    return types.void(types.int64, variant), codegen


def _compile(variant: int) -> Any:
    """The kernel of a variant, as a C function of its arguments' address."""

    def kernel(arguments: int) -> None:
        _run(arguments, variant)

    return cfunc(types.void(types.int64), **COMPILED)(kernel)


# Addresses of the kernels that are compiled, by variant.
_KERNELS = np.zeros(VARIANTS, np.int64)
_ADDRESS = _KERNELS.ctypes.data
_COMPILED_KERNELS: dict[int, Any] = {}  # keeps their code alive
_COMPILING = threading.Lock()


@cfunc(types.int64())
def _base() -> int:
    return _ADDRESS


# The address differs from process to process, so this function alone is not cached on disk.
kernels = external_function("jaxserve_stored_kernels", _base, types.int64())


def ensure_compiled(variant: int) -> None:
    """Compiles the kernel of a variant, kind * AFFINES + affine, unless it is."""
    with _COMPILING:
        if variant not in _COMPILED_KERNELS:
            with checked_cache():
                kernel = _COMPILED_KERNELS[variant] = _compile(variant)
            _KERNELS[variant] = kernel.address
