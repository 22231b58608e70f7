"""GGML's block formats, kept as their bytes lie in a GGUF file.

Layouts: ggml's ggml-common.h and ggml-quants.c. Each product below is exact in float32 (a float16
scale has 11 bits, a block's own scale 8, a code 6), so fusing it with an addition changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def _half(raw: jax.Array) -> jax.Array:  # [..., 2] -> [..., 1] float32
    return lax.bitcast_convert_type(raw, jnp.float16).astype(jnp.float32)[..., None]


def _nibbles(raw: jax.Array) -> jax.Array:
    """Low nibbles, then high ones: [..., n] -> [..., 2 n] int32."""
    return jnp.concatenate([raw & 15, raw >> 4], axis=-1).astype(jnp.int32)


def _bits(raw: jax.Array) -> jax.Array:
    """The bits of bytes from the lowest on: [..., n] -> [..., 8 n] int32."""
    bits = (raw[..., None] >> jnp.arange(8, dtype=jnp.uint8)) & 1
    return bits.reshape(*raw.shape[:-1], -1).astype(jnp.int32)


def _q4_0(raw: jax.Array) -> jax.Array:
    return _half(raw[..., :2]) * (_nibbles(raw[..., 2:]) - 8)


def _q4_1(raw: jax.Array) -> jax.Array:
    return _half(raw[..., :2]) * _nibbles(raw[..., 4:]) + _half(raw[..., 2:4])


def _q5_0(raw: jax.Array) -> jax.Array:
    codes = _nibbles(raw[..., 6:]) | _bits(raw[..., 2:6]) << 4
    return _half(raw[..., :2]) * (codes - 16)


def _q5_1(raw: jax.Array) -> jax.Array:
    codes = _nibbles(raw[..., 8:]) | _bits(raw[..., 4:8]) << 4
    return _half(raw[..., :2]) * codes + _half(raw[..., 2:4])


def _q8_0(raw: jax.Array) -> jax.Array:
    return _half(raw[..., :2]) * lax.bitcast_convert_type(raw[..., 2:], jnp.int8)


def _k_scales(raw: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Scales and minima of eight groups, six bits each: [..., 12] -> twice [..., 8]."""
    low, high, rest = raw[..., :4], raw[..., 4:8], raw[..., 8:]
    scales = jnp.concatenate([low & 63, rest & 15 | low >> 2 & 48], axis=-1)
    minima = jnp.concatenate([high & 63, rest >> 4 | high >> 2 & 48], axis=-1)
    return scales.astype(jnp.float32), minima.astype(jnp.float32)


def _k_affine(raw: jax.Array, codes: jax.Array) -> jax.Array:
    """Codes [..., 8, 32] with the scales that a block begins with."""
    scales, minima = _k_scales(raw[..., 4:16])
    scales, minima = _half(raw[..., :2]) * scales, _half(raw[..., 2:4]) * minima
    return scales[..., None] * codes - minima[..., None]


def _groups(raw: jax.Array, size: int, bits: int) -> jax.Array:
    """Codes of some bits, whole runs of bytes giving the lowest bits first: -> [..., 8, 32]."""
    runs = raw.reshape(*raw.shape[:-1], -1, 1, size)
    shifts = jnp.arange(0, 8, bits, dtype=jnp.uint8)[:, None]
    codes = (runs >> shifts) & (2**bits - 1)
    return codes.reshape(*raw.shape[:-1], 8, 32).astype(jnp.int32)


def _q4_k(raw: jax.Array) -> jax.Array:
    return _k_affine(raw, _groups(raw[..., 16:], 32, 4))


def _q5_k(raw: jax.Array) -> jax.Array:
    codes = _groups(raw[..., 48:], 32, 4) | _groups(raw[..., 16:48], 32, 1) << 4
    return _k_affine(raw, codes)


def _q6_k(raw: jax.Array) -> jax.Array:
    codes = (_groups(raw[..., :128], 64, 4) | _groups(raw[..., 128:192], 32, 2) << 4) - 32
    scales = _half(raw[..., 208:]) * lax.bitcast_convert_type(raw[..., 192:208], jnp.int8)
    return scales[..., None] * codes.reshape(*raw.shape[:-1], 16, 16)


@dataclass(frozen=True, slots=True)
class Layout:
    """Args:
    values, nbytes: of one block.
    widen: blocks [..., N, nbytes] to numbers [..., N, ...].
    """

    values: int
    nbytes: int
    widen: Callable[[jax.Array], jax.Array]


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
        return LAYOUTS[self.kind].widen(blocks).reshape(*blocks.shape[:-2], -1)
