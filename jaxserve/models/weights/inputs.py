"""Rounding of a product's inputs to 8 bits, as checkpoints of 8-bit activations were calibrated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0}
# What the largest input of a dynamic scale becomes: compressed-tensors' definition, half of the
# range.
_SPAN = {"int8": 127.5, "float8_e4m3fn": 448.0}


@dataclass(frozen=True, slots=True)
class InputRounding:
    """Args:
    dtype: what inputs are rounded to.
    group: inputs that share a scale, of each token its own; 0 is all of them. None: one scale,
        which the checkpoint brings.
    """

    dtype: Literal["int8", "float8_e4m3fn"]
    group: int | None = 0

    def scales(self, x: jax.Array) -> jax.Array:
        """Dynamic scales of x [T, I]: [T, I / group, 1] float32."""
        assert self.group is not None
        blocks = x.astype(jnp.float32).reshape(len(x), -1, self.group or x.shape[-1])
        largest = jnp.max(jnp.abs(blocks), axis=-1, keepdims=True)
        return jnp.maximum(_quotient(largest, _SPAN[self.dtype]), jnp.finfo(jnp.float32).tiny)

    def codes(self, x: jax.Array, scale: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """x [T, I] as codes [T, I / group, group] of `dtype`, and their scales [T, I / group, 1]
        float32, or [1 or T, 1, 1] where the checkpoint brings them.

        Args:
            scale: the checkpoint's, of one element or one a token.
        """
        if self.group is None:
            assert scale is not None
            scales = jnp.reshape(scale.astype(jnp.float32), (-1, 1, 1))
        else:
            scales = self.scales(x)
        blocks = x.astype(jnp.float32).reshape(len(x), -1, self.group or x.shape[-1])
        blocks = _quotient(blocks, scales)
        largest = LARGEST[self.dtype]
        if self.dtype == "int8":
            return jnp.clip(jnp.round(blocks), -largest - 1, largest).astype(jnp.int8), scales
        return jnp.clip(blocks, -largest, largest).astype(self.dtype), scales

    def round(self, x: jax.Array, scale: jax.Array | None) -> jax.Array:
        """x [T, I], rounded and widened again.

        Args:
            scale: as codes() takes it.
        """
        codes, scales = self.codes(x, scale)
        return (codes.astype(jnp.float32) * scales).reshape(x.shape).astype(x.dtype)


def _quotient(x: jax.Array, divisor: jax.Array | float) -> jax.Array:
    """x / divisor, rounded once. XLA multiplies by the reciprocal of a divisor that it broadcasts;
    but an int8 token's largest number lies between two codes, where every bit counts."""
    return x / jnp.where(x == x, divisor, 1)
