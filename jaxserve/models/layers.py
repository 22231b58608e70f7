"""Layers that the model families share. Activations are flat over the batch's tokens: [T, E].

Logical axes on parameters: embed, heads, kv_heads, head_dim, mlp, vocab; the engine maps them to
mesh axes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.cache import CacheSpec, LayerCache

Rope = tuple[jax.Array, jax.Array]  # cos, sin: [T, D/2] float32


def param(shape: tuple[int, ...], axes: tuple[str | None, ...], dtype: jnp.dtype) -> nnx.Param:
    """An empty parameter with one logical axis name a dimension; the loader fills it."""
    return nnx.Param(jnp.zeros(shape, dtype), out_sharding=axes, eager_sharding=False)


class RMSNorm(nnx.Module):
    """Root mean square norm in float32 (Zhang & Sennrich 2019)."""

    def __init__(self, size: int, eps: float, dtype: jnp.dtype) -> None:
        self.scale = param((size,), ("embed",), dtype)
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:  # [T, E] -> [T, E]
        f = x.astype(jnp.float32)
        f = f * jax.lax.rsqrt(jnp.mean(f * f, axis=-1, keepdims=True) + self.eps)
        return self.scale[...] * f.astype(x.dtype)


def rope_angles(positions: jax.Array, head_dim: int, theta: float) -> Rope:
    """Cosines and sines [T, D/2] of positions [T] (Su et al. 2021, section 3.4.2)."""
    inverse = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = positions.astype(jnp.float32)[:, None] * inverse
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, rope: Rope) -> jax.Array:
    """Rotates pairs (i, i + D/2) of x [T, heads, D]: the half-split pairing of Hugging Face."""
    cos, sin = (a[:, None, :] for a in rope)
    low, high = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    out = jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
    return out.astype(x.dtype)


class Attention(nnx.Module):
    """Grouped-query attention (Ainslie et al. 2023) over a paged cache.

    One kernel makes q, k and v: for each kv head its group of query heads, then k, then v, so that
    a shard by kv heads holds whole groups.
    """

    def __init__(
        self, hidden: int, num_heads: int, num_kv_heads: int, head_dim: int, dtype: jnp.dtype
    ) -> None:
        self.group = num_heads // num_kv_heads
        self.cache_spec = CacheSpec(num_kv_heads, head_dim)
        self.qkv = param(
            (hidden, num_kv_heads, self.group + 2, head_dim),
            ("embed", "kv_heads", None, "head_dim"),
            dtype,
        )
        self.out = param((num_heads, head_dim, hidden), ("heads", "head_dim", "embed"), dtype)

    def __call__(self, x: jax.Array, rope: Rope, cache: LayerCache) -> tuple[jax.Array, LayerCache]:
        tokens, hidden = x.shape
        kernel = self.qkv[...]
        qkv = (x @ kernel.reshape(hidden, -1)).reshape(tokens, *kernel.shape[1:])  # [T, K, G+2, D]
        head_dim = self.cache_spec.head_dim
        q = qkv[:, :, : self.group].reshape(tokens, -1, head_dim)  # [T, H, D]
        k, v = qkv[:, :, self.group], qkv[:, :, self.group + 1]  # [T, K, D]
        out, cache = cache.attend(rotate(q, rope), rotate(k, rope), v, scale=head_dim**-0.5)
        return out.reshape(tokens, -1) @ self.out[...].reshape(-1, hidden), cache


class GatedMLP(nnx.Module):
    """SwiGLU (Shazeer 2020): down(silu(gate(x)) * up(x)), gate and up in one kernel."""

    def __init__(self, hidden: int, intermediate: int, dtype: jnp.dtype) -> None:
        self.gate_up = param((hidden, 2, intermediate), ("embed", None, "mlp"), dtype)
        self.down = param((intermediate, hidden), ("mlp", "embed"), dtype)

    def __call__(self, x: jax.Array) -> jax.Array:  # [T, E] -> [T, E]
        kernel = self.gate_up[...]
        gate, up = jnp.split(x @ kernel.reshape(kernel.shape[0], -1), 2, axis=-1)
        return (jax.nn.silu(gate) * up) @ self.down[...]


class Embedding(nnx.Module):
    """Token table; also the head of models that tie the two."""

    def __init__(self, vocab: int, hidden: int, dtype: jnp.dtype) -> None:
        self.embedding = param((vocab, hidden), ("vocab", "embed"), dtype)

    def __call__(self, tokens: jax.Array) -> jax.Array:  # [T] -> [T, E]
        return self.embedding[...][tokens]

    def logits(self, x: jax.Array) -> jax.Array:  # [S, E] -> [S, V] float32
        return jnp.einsum("se,ve->sv", x, self.embedding[...], preferred_element_type=jnp.float32)
