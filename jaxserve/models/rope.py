"""Rotary position embedding (Su et al. 2021), and its scalings for longer contexts."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.models.config import (
    LayerConfig,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    YarnScaling,
)


class Rope(NamedTuple):
    """What a step's positions do to queries and keys.

    Args:
        cos, sin: [T, R/2] float32, R dimensions being rotated; None: none are.
        query_factor: [T] float32, on the queries.
    """

    cos: jax.Array | None
    sin: jax.Array | None
    query_factor: jax.Array | None = None

    def turn(self, x: jax.Array) -> jax.Array:
        """Queries or keys [T, heads, D], rotated."""
        return x if self.cos is None or self.sin is None else rotate(x, self.cos, self.sin)

    def scale(self, q: jax.Array) -> jax.Array:
        """Queries [T, H, D] times their factors."""
        if self.query_factor is None:
            return q
        return q * self.query_factor[:, None, None].astype(q.dtype)


def rope_of(positions: jax.Array, layer: LayerConfig, rotated_dims: int, context: int) -> Rope:
    """See rope_angles(), and LayerConfig for the factor on queries."""
    cos = sin = factor = None
    if layer.rope is not None:
        cos, sin = rope_angles(positions, layer.rope, rotated_dims, context)
    if (scaling := layer.query_scaling) is not None:
        whole = jnp.floor((positions + scaling.offset) / scaling.interval)
        factor = 1 + scaling.beta * jnp.log1p(whole.astype(jnp.float32))
    return Rope(cos, sin, factor)


def rope_angles(
    positions: jax.Array, rope: RopeConfig, head_dim: int, context: int
) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines [T, R/2] of positions [T].

    Args:
        context: most tokens that a sequence may have (LongRoPE chooses its factors by it).
    """
    inverse, factor = inverse_frequencies(rope, head_dim, context)
    angles = positions.astype(jnp.float32)[:, None] * inverse.astype(np.float32)
    return jnp.cos(angles) * factor, jnp.sin(angles) * factor


def inverse_frequencies(rope: RopeConfig, head_dim: int, context: int) -> tuple[np.ndarray, float]:
    """Radians a position [R/2], float64, and the factor on cosines and sines."""
    size = int(head_dim * rope.rotated)
    inverse = rope.theta ** (-np.arange(0, size, 2) / size)
    match rope.scaling:
        case None:
            return inverse, 1.0
        case LinearScaling(factor):
            return inverse / factor, 1.0
        case Llama3Scaling():
            return _llama3(inverse, rope.scaling), 1.0
        case YarnScaling():
            return _yarn(inverse, rope.theta, rope.scaling), rope.scaling.attention_factor
        case LongRopeScaling():
            beyond = context > rope.scaling.original_context
            factors = rope.scaling.long_factors if beyond else rope.scaling.short_factors
            return inverse / np.array(factors), rope.scaling.attention_factor


def _llama3(inverse: np.ndarray, scaling: Llama3Scaling) -> np.ndarray:
    # Full turns within the original context; below low: divided, above high: kept.
    turns = scaling.original_context * inverse / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    if low == high:
        kept = (turns > high).astype(np.float64)
    else:
        kept = np.clip((turns - low) / (high - low), 0, 1)
    return inverse * (kept + (1 - kept) / scaling.factor)


def _yarn(inverse: np.ndarray, theta: float, scaling: YarnScaling) -> np.ndarray:
    size = 2 * len(inverse)

    def dimension(turns: float) -> float:
        """The dimension whose pair makes this many full turns within the original context."""
        ratio = scaling.original_context / (turns * 2 * math.pi)
        return size * math.log(ratio) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width = high - low or 0.001
    interpolated = np.clip((np.arange(len(inverse)) - low) / width, 0, 1)
    return inverse * (1 - interpolated + interpolated / scaling.factor)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotates pairs (i, i + R/2) of the first R dimensions of x [T, heads, D], the half-split
    pairing of Hugging Face, by angles [T, R/2]; the rest stays."""
    cos, sin = cos[:, None, :], sin[:, None, :]
    half = cos.shape[-1]
    f = x.astype(jnp.float32)
    low, high, rest = f[..., :half], f[..., half : 2 * half], f[..., 2 * half :]
    out = jnp.concatenate([low * cos - high * sin, high * cos + low * sin, rest], axis=-1)
    return out.astype(x.dtype)
