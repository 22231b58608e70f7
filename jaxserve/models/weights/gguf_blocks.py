"""GGML's block formats, kept as their bytes lie in a GGUF file.

Layouts: ggml's ggml-common.h and ggml-quants.c. Each product below is exact in float32 (a float16
scale has 11 bits, a block's own scale 8, a code 6), so fusing it with an addition changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    from cpu_kernels import Columns


@dataclass(frozen=True, slots=True)
class Parts:
    """What blocks [..., N, bytes] consist of: a number is (code + offset) * scale + minimum.

    Args:
        codes: [..., N, values] uint8, or int8.
        bits: of a code.
        scales: [..., N, groups of a block]; float16, or integers of 8 bits that scale_factors
            [..., N, 1] are multiplied by.
        minima, minimum_factors: the same, if there are any.
    """

    codes: jax.Array
    bits: int
    offset: int
    scales: jax.Array
    scale_factors: jax.Array | None = None
    minima: jax.Array | None = None
    minimum_factors: jax.Array | None = None

    def numbers(self) -> jax.Array:  # [..., N, groups, values of a group] float32
        scales = _product(self.scales, self.scale_factors)
        codes = self.codes.astype(jnp.float32) + self.offset
        values = codes.reshape(*scales.shape, -1) * scales[..., None]
        if self.minima is None:
            return values
        return values + _product(self.minima, self.minimum_factors)[..., None]


def _product(numbers: jax.Array, factors: jax.Array | None) -> jax.Array:
    floats = numbers.astype(jnp.float32)
    return floats if factors is None else floats * factors.astype(jnp.float32)


def _half(raw: jax.Array) -> jax.Array:  # [..., 2] -> [..., 1] float16
    return lax.bitcast_convert_type(raw, jnp.float16)[..., None]


def _nibbles(raw: jax.Array) -> jax.Array:
    """Low nibbles, then high ones: [..., n] -> [..., 2 n] uint8."""
    return jnp.concatenate([raw & 15, raw >> 4], axis=-1)


def _bits(raw: jax.Array) -> jax.Array:
    """The bits of bytes from the lowest on: [..., n] -> [..., 8 n] uint8."""
    bits = (raw[..., None] >> jnp.arange(8, dtype=jnp.uint8)) & 1
    return bits.reshape(*raw.shape[:-1], -1)


def _q4_0(raw: jax.Array) -> Parts:
    return Parts(_nibbles(raw[..., 2:]), 4, -8, _half(raw[..., :2]))


def _q4_1(raw: jax.Array) -> Parts:
    codes = _nibbles(raw[..., 4:])
    return Parts(codes, 4, 0, _half(raw[..., :2]), minima=_half(raw[..., 2:4]))


def _q5_0(raw: jax.Array) -> Parts:
    codes = _nibbles(raw[..., 6:]) | _bits(raw[..., 2:6]) << 4
    return Parts(codes, 5, -16, _half(raw[..., :2]))


def _q5_1(raw: jax.Array) -> Parts:
    codes = _nibbles(raw[..., 8:]) | _bits(raw[..., 4:8]) << 4
    return Parts(codes, 5, 0, _half(raw[..., :2]), minima=_half(raw[..., 2:4]))


def _q8_0(raw: jax.Array) -> Parts:
    return Parts(lax.bitcast_convert_type(raw[..., 2:], jnp.int8), 8, 0, _half(raw[..., :2]))


def _k_affine(raw: jax.Array, codes: jax.Array, bits: int) -> Parts:
    """Codes with the scales and minima that a block begins with, six bits each."""
    low, high, rest = raw[..., 4:8], raw[..., 8:12], raw[..., 12:16]
    scales = jnp.concatenate([low & 63, rest & 15 | low >> 2 & 48], axis=-1)
    minima = jnp.concatenate([high & 63, rest >> 4 | high >> 2 & 48], axis=-1)
    return Parts(codes, bits, 0, scales, _half(raw[..., :2]), minima, -_half(raw[..., 2:4]))


def _groups(raw: jax.Array, size: int, bits: int) -> jax.Array:
    """Codes of some bits, whole runs of bytes giving the lowest bits first: -> [..., 256]."""
    runs = raw.reshape(*raw.shape[:-1], -1, 1, size)
    shifts = jnp.arange(0, 8, bits, dtype=jnp.uint8)[:, None]
    codes = (runs >> shifts) & (2**bits - 1)
    return codes.reshape(*raw.shape[:-1], 256)


def _q4_k(raw: jax.Array) -> Parts:
    return _k_affine(raw, _groups(raw[..., 16:], 32, 4), 4)


def _q5_k(raw: jax.Array) -> Parts:
    codes = _groups(raw[..., 48:], 32, 4) | _groups(raw[..., 16:48], 32, 1) << 4
    return _k_affine(raw, codes, 5)


def _q6_k(raw: jax.Array) -> Parts:
    codes = _groups(raw[..., :128], 64, 4) | _groups(raw[..., 128:192], 32, 2) << 4
    scales = lax.bitcast_convert_type(raw[..., 192:208], jnp.int8)
    return Parts(codes, 6, -32, scales, _half(raw[..., 208:]))


@dataclass(frozen=True, slots=True)
class Layout:
    """Args:
    values, nbytes: of one block.
    parts: of blocks [..., N, nbytes].
    """

    values: int
    nbytes: int
    parts: Callable[[jax.Array], Parts]


LAYOUTS: Mapping[str, Layout] = {
    "Q4_0": Layout(32, 18, _q4_0),
    "Q4_1": Layout(32, 20, _q4_1),
    "Q5_0": Layout(32, 22, _q5_0),
    "Q5_1": Layout(32, 24, _q5_1),
    "Q8_0": Layout(32, 34, _q8_0),
    "Q4_K": Layout(256, 144, _q4_k),
    "Q5_K": Layout(256, 176, _q5_k),
    "Q6_K": Layout(256, 210, _q6_k),
}


@dataclass(frozen=True)
class GGUFBlocks:
    """blocks [*O, N, bytes] uint8, each row of N blocks.

    Args:
        kind: a name in LAYOUTS.
    """

    kind: str

    @property
    def trailing(self) -> Mapping[str, int]:
        return {"blocks": 2}

    def inputs(self, arrays: Mapping[str, Any]) -> int:
        return int(arrays["blocks"].shape[-2]) * LAYOUTS[self.kind].values

    def widen(self, arrays: Mapping[str, jax.Array]) -> jax.Array:
        blocks = arrays["blocks"]
        numbers = LAYOUTS[self.kind].parts(blocks).numbers()
        return numbers.reshape(*blocks.shape[:-2], -1)

    def columns(self, arrays: Mapping[str, jax.Array]) -> Columns:
        from cpu_kernels import pack_codes

        layout = LAYOUTS[self.kind]
        parts = layout.parts(arrays["blocks"])
        group = layout.values // parts.scales.shape[-1]

        def rows(array: jax.Array | None) -> jax.Array | None:
            return None if array is None else array.reshape(len(array), -1)

        table = () if parts.bits == 8 else tuple(float(code + parts.offset) for code in range(16))
        return pack_codes(
            parts.codes.reshape(len(parts.codes), -1),
            group=group,
            table=table,
            high=max(0, parts.bits - 4) if table else 0,
            scales=rows(parts.scales),
            scale_factors=rows(parts.scale_factors),
            minima=rows(parts.minima),
            minimum_factors=rows(parts.minimum_factors),
        )
