"""Columns: a matrix as the kernels read it, its outputs in groups that are as wide as a tile.

Numbers are floats of 32 or 16 bits, or codes of 4 to 8 bits with scales. What belongs to an output
is a lane of each array, so that a vector of codes is loaded, widened and scaled for as many outputs
at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cpu_kernels import scales as scale_types
from cpu_kernels import widen
from cpu_kernels.microkernels import STEP
from cpu_kernels.stored_matmul import SETTINGS
from cpu_kernels.tiles import TILE

_C = TILE.columns
_KINDS = {
    "int8": widen.INT8,
    "uint8": widen.FP8,
    "bfloat16": widen.BFLOAT16,
    "float16": widen.FLOAT16,
}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Columns:
    """A matrix [O, I] in N groups of C outputs; those from O on are zeros. C depends on the
    processor; I is filled up to I', a multiple of eight, except in float32.

    Arrays:
        codes: [N, I', C] float32, bfloat16, float16, int8, or uint8, which is FP8 (e4m3); or
            [N, I' / 8, C] uint32, four bits of eight inputs each, the first in the lowest.
        high: [N, I', H, C / 8] uint8, further bits of the codes, a bit an output.
        scales: [N, G, C] float32, bfloat16, float16, or uint8 that stand for 2 ** (byte - 127); or
            integers of 8 bits, with scale_factors.
        minima, zeros: [N, G, C], if there are any; minima as scales.
        scale_factors, minimum_factors: [N, F, C] float16, by which the integers are multiplied,
            each for G / F of them.

    A number is (value - zero) * scale or value * scale + minimum.

    Args:
        group: inputs that share a scale; 0 is all of them.
        table: the values of codes of four bits.
    """

    arrays: dict[str, Any]
    outputs: int = field(metadata={"static": True})
    inputs: int = field(metadata={"static": True})
    group: int = field(default=0, metadata={"static": True})
    table: tuple[float, ...] = field(default=(), metadata={"static": True})

    @property
    def groups(self) -> int:
        """N."""
        return -(-self.outputs // _C)

    def rows(self, outputs: jax.Array) -> jax.Array:
        """The numbers [N, I] float32 of some outputs [N]."""
        place, lane = outputs // _C, outputs % _C
        found = {n: a[place, :, lane] for n, a in self.arrays.items() if n != "high"}
        values = self._values(found.pop("codes"))
        if "high" in self.arrays:
            chosen = self.arrays["high"][place, :, :, lane // 8]  # [N, I', H]
            bits = chosen >> (lane % 8).astype(jnp.uint8)[:, None, None] & 1
            values += (bits * jnp.array([16, 32][: bits.shape[-1]], jnp.uint8)).sum(-1)
        values = values[:, : self.inputs]
        if "zeros" in found:
            values -= self._spread(found["zeros"].astype(jnp.float32))
        if "scales" in found:
            values *= self._spread(_scaled(found["scales"], found.get("scale_factors")))
        if "minima" in found:
            values += self._spread(_scaled(found["minima"], found.get("minimum_factors")))
        return values

    def _values(self, codes: jax.Array) -> jax.Array:
        if codes.dtype == jnp.uint8:
            codes = codes.view(jnp.float8_e4m3fn)
        if codes.dtype != jnp.uint32:
            return codes.astype(jnp.float32)
        nibbles = codes[..., None] >> jnp.arange(0, 32, 4, dtype=jnp.uint32) & 15
        return jnp.asarray(self.table, jnp.float32)[nibbles].reshape(len(codes), -1)

    def _spread(self, scales: jax.Array) -> jax.Array:
        """[N, G] to [N, I], or to [N, 1] where that is as good."""
        if not self.group:
            return scales
        return jnp.repeat(scales, self.group, axis=-1)[:, : self.inputs]


def _scaled(scales: jax.Array, factors: jax.Array | None) -> jax.Array:
    if factors is not None:
        repeated = jnp.repeat(factors, scales.shape[-1] // factors.shape[-1], axis=-1)
        return scales.astype(jnp.float32) * repeated.astype(jnp.float32)
    if scales.dtype == jnp.uint8:
        scales = scales.view(jnp.float8_e8m0fnu)
    return scales.astype(jnp.float32)


def in_columns(rows: jax.Array) -> jax.Array:
    """What belongs to each output [O, R] in groups of outputs: [N, R, C]."""
    outputs, count = rows.shape
    groups = -(-outputs // _C)
    padded = jnp.pad(rows, ((0, groups * _C - outputs), (0, 0)))
    return padded.reshape(groups, _C, count).swapaxes(1, 2)


def pack(w: jax.Array) -> Columns:
    """A matrix [O, I] of float32, bfloat16 or float16."""
    return pack_codes(w)


def pack_codes(
    codes: jax.Array,
    *,
    group: int = 0,
    table: tuple[float, ...] = (),
    high: int = 0,
    **scales: jax.Array | None,
) -> Columns:
    """A matrix of codes, see Columns.

    Args:
        codes: [O, I] floats of 32, 16 or (e4m3) 8 bits, int8, or uint8 that stand for table[code &
            15] + (code & ~15).
        group: a multiple of 8, or 0.
        high: bits of uint8 codes beyond four.
        scales: [O, G] or (factors) [O, F].
    """
    outputs, inputs = codes.shape
    if codes.dtype != jnp.float32:
        codes = jnp.pad(codes, ((0, 0), (0, -inputs % STEP)))
    arrays = {n: in_columns(a) for n, a in scales.items() if a is not None}
    if codes.dtype == jnp.uint8:
        columns = in_columns(codes)  # [N, I', C]
        places = (len(columns), -1, STEP, _C)
        shifts = jnp.arange(0, 32, 4, dtype=jnp.uint32)[:, None]
        words = (columns.reshape(places) & 15).astype(jnp.uint32) << shifts
        arrays["codes"] = words.sum(2, dtype=jnp.uint32)
        if high:
            upper = columns[..., None, :] >> jnp.arange(4, 4 + high, dtype=jnp.uint8)[:, None] & 1
            eights = upper.reshape(*upper.shape[:-1], _C // 8, 8)
            bits = eights << jnp.arange(8, dtype=jnp.uint8)
            arrays["high"] = bits.sum(-1, dtype=jnp.uint8)
    elif codes.dtype == jnp.float8_e4m3fn:
        arrays["codes"] = in_columns(lax.bitcast_convert_type(codes, jnp.uint8))
    else:
        arrays["codes"] = in_columns(codes)
    packed = Columns(arrays, outputs, inputs, group, table)
    if codes.dtype != jnp.float32:
        kind, affine = _kind(packed)
        widen.ensure_compiled(kind * widen.AFFINES + affine)
    return packed


def _kind(columns: Columns) -> tuple[int, int]:
    """The kind of the codes, and what becomes of their values; see widen.py."""
    arrays = columns.arrays
    affine = widen.SCALED if "scales" in arrays else widen.PLAIN
    if "zeros" in arrays or "minima" in arrays:
        affine = widen.ADDED if "minima" in arrays else widen.SUBTRACTED
    codes = arrays["codes"]
    if codes.dtype == jnp.uint32:
        return widen.NIBBLES + (arrays["high"].shape[-2] if "high" in arrays else 0), affine
    return _KINDS[codes.dtype.name], affine


def call_arguments(columns: Columns) -> list[Any]:
    """The arguments of a call of the kernel for codes, after x; see stored_matmul.py."""
    arrays, absent = columns.arrays, np.zeros((0, 1, 1), np.uint8)
    kind, affine = _kind(columns)
    offsets = "minima" if "minima" in arrays else "zeros"
    names = ("codes", "high", "scales", "scale_factors", offsets, "minimum_factors")
    numbers = [arrays.get(name, absent) for name in names]
    _, _, scales, scale_factors, offset_rows, offset_factors = numbers
    settings = {
        "variant": kind * widen.AFFINES + affine,
        "input_bits": widen.LOW_BITS[kind],
        "high_bits": widen.HIGH_BITS[kind],
        "group": columns.group or columns.inputs + STEP,
        "scale_type": _scale_type(scales, scale_factors),
        "offset_type": _scale_type(offset_rows, offset_factors),
        "groups": scales.shape[1] if "scales" in arrays else 0,
        "scale_factors": scale_factors.shape[1] if "scale_factors" in arrays else 0,
        "offset_factors": offset_factors.shape[1] if "minimum_factors" in arrays else 0,
        "has_offsets": affine in (widen.ADDED, widen.SUBTRACTED),
    }
    table = np.array(columns.table or [0] * 16, np.float32)
    return [*numbers, table, np.array([settings[name] for name in SETTINGS], np.int32)]


def _scale_type(scales: Any, factors: Any) -> int:
    if scales.dtype == jnp.uint8:
        return scale_types.UINT8 if factors.size else scale_types.E8M0
    return int(getattr(scale_types, scales.dtype.name.upper()))
