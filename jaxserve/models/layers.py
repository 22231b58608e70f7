"""Layers that the model families share. Activations are flat over the batch's tokens: [T, E].

Logical axes on parameters: embed, heads, kv_heads, head_dim, mlp, vocab, expert; the engine maps
them to mesh axes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.cache import CacheSpec, LayerCache
from jaxserve.models.config import Activation, LayerConfig, ModelConfig
from jaxserve.models.rope import Rope
from jaxserve.models.weights import linear, take

ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
}


def param(shape: tuple[int, ...], axes: tuple[str | None, ...], dtype: jnp.dtype) -> nnx.Param:
    """A parameter of zeros, with a logical axis name a dimension; the loader sets its values."""
    return nnx.Param(jnp.zeros(shape, dtype), out_sharding=axes, eager_sharding=False)


def matrix(
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    dtype: jnp.dtype,
    contracted: tuple[int, ...] = (-1,),
) -> nnx.Param:
    """As param(), of a matrix that `linear` or its like multiplies by: it may be filled with a
    stored form of one (see models/weights).

    Args:
        contracted: which dimensions are the inputs', from the last.
    """
    zeros = jnp.zeros(shape, dtype)
    return nnx.Param(zeros, out_sharding=axes, eager_sharding=False, contracted=contracted)


class RMSNorm(nnx.Module):
    """Root mean square norm in float32 (Zhang & Sennrich 2019).

    Args:
        offset: the factor is 1 + scale, and is applied before rounding (Gemma).
    """

    def __init__(
        self, size: int, eps: float, dtype: jnp.dtype, *, offset: bool = False, axis: str = "embed"
    ) -> None:
        self.scale = param((size,), (axis,), dtype)
        self.eps = eps
        self.offset = offset

    def __call__(self, x: jax.Array) -> jax.Array:  # [..., size] -> [..., size]
        f = x.astype(jnp.float32)
        f = _normalized(f, self.eps)
        if self.offset:
            return (f * (1 + self.scale[...].astype(jnp.float32))).astype(x.dtype)
        return self.scale[...] * f.astype(x.dtype)


def _normalized(x: jax.Array, eps: float) -> jax.Array:
    """x [..., size] float32 over its root mean square, on a CPU with the same bits whatever the
    number of rows."""
    if jax.default_backend() != "cpu":
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    import cpu_kernels

    return cpu_kernels.normalize(x, eps)


class Attention(nnx.Module):
    """Grouped-query attention (Ainslie et al. 2023) over a paged cache.

    One weight projects to q, k and v: for each kv head its group of query heads, then k, then v, so
    that a shard by kv heads has whole groups.

    Args:
        qkv_bias, out_bias: on the projections.
        qk_norm: a norm on queries and keys before their rotation: of each head, or of all heads as
            one vector.
        norm_offset: see RMSNorm.
        sinks: one more logit a head in the softmax.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: LayerConfig,
        dtype: jnp.dtype,
        *,
        qkv_bias: bool = False,
        out_bias: bool = False,
        qk_norm: Literal["head", "all"] | None = None,
        norm_offset: bool = False,
        sinks: bool = False,
    ) -> None:
        hidden, head_dim = config.hidden_size, config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.group = heads // kv_heads
        self.cache_spec = CacheSpec(kv_heads, head_dim, layer.window)
        self.scale = config.attention_scale or head_dim**-0.5
        self.softcap = config.attention_softcap
        rows = (kv_heads, self.group + 2, head_dim)
        axes = ("kv_heads", None, "head_dim")
        self.qkv = matrix((*rows, hidden), (*axes, "embed"), dtype)
        self.qkv_bias = param(rows, axes, dtype) if qkv_bias else None
        self.out = matrix(
            (hidden, heads, head_dim), ("embed", "heads", "head_dim"), dtype, (-2, -1)
        )
        self.out_bias = param((hidden,), ("embed",), dtype) if out_bias else None
        self.q_norm: RMSNorm | None
        self.k_norm: RMSNorm | None
        if qk_norm is None:
            self.q_norm = self.k_norm = None
        else:
            per_head = qk_norm == "head"
            norm = partial(
                RMSNorm,
                eps=config.rms_norm_eps,
                dtype=dtype,
                offset=norm_offset,
                axis="head_dim" if per_head else "heads",
            )
            self.q_norm = norm(head_dim if per_head else heads * head_dim)
            self.k_norm = norm(head_dim if per_head else kv_heads * head_dim)
        self.sinks = param((heads,), ("heads",), dtype) if sinks else None
        self.kv_scales = (
            param((2, kv_heads), (None, "kv_heads"), dtype) if config.kv_scales else None
        )

    def __call__(self, x: jax.Array, rope: Rope, cache: LayerCache) -> tuple[jax.Array, LayerCache]:
        tokens = len(x)
        qkv = linear(x, self.qkv.get_value())  # [T, K, G+2, D]
        if self.qkv_bias is not None:
            qkv += self.qkv_bias[...]
        head_dim = self.cache_spec.head_dim
        q = qkv[:, :, : self.group].reshape(tokens, -1, head_dim)  # [T, H, D]
        k, v = qkv[:, :, self.group], qkv[:, :, self.group + 1]  # [T, K, D]
        if self.q_norm is not None and self.k_norm is not None:
            q, k = _normed(self.q_norm, q), _normed(self.k_norm, k)
        q, k = rope.scale(rope.turn(q)), rope.turn(k)
        out, cache = cache.attend(
            q,
            k,
            v,
            scale=self.scale,
            window=self.cache_spec.window,
            softcap=self.softcap,
            sinks=None if self.sinks is None else self.sinks[...],
            kv_scales=None if self.kv_scales is None else self.kv_scales[...],
        )
        out = linear(out, self.out.get_value())
        return out if self.out_bias is None else out + self.out_bias[...], cache


def _normed(norm: RMSNorm, x: jax.Array) -> jax.Array:  # [T, heads, D]
    """Norm of each head, or of all heads as one vector, by the norm's size."""
    return norm(x.reshape(x.shape[0], -1, norm.scale.shape[0])).reshape(x.shape)


class GatedMLP(nnx.Module):
    """A gated linear unit (Shazeer 2020): down(act(gate(x)) * up(x)), gate and up in one kernel.

    Args:
        bias: on all three projections.
    """

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        activation: Activation,
        dtype: jnp.dtype,
        *,
        bias: bool = False,
    ) -> None:
        self.gate_up = matrix((2, intermediate, hidden), (None, "mlp", "embed"), dtype)
        self.down = matrix((hidden, intermediate), ("embed", "mlp"), dtype)
        self.gate_up_bias = param((2, intermediate), (None, "mlp"), dtype) if bias else None
        self.down_bias = param((hidden,), ("embed",), dtype) if bias else None
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:  # [T, E] -> [T, E]
        projected = linear(x, self.gate_up.get_value())  # [T, 2, F]
        if self.gate_up_bias is not None:
            projected += self.gate_up_bias[...]
        gate, up = jnp.split(projected.reshape(len(x), -1), 2, axis=-1)
        out = linear(ACTIVATIONS[self.activation](gate) * up, self.down.get_value())
        return out if self.down_bias is None else out + self.down_bias[...]


class Embedding(nnx.Module):
    """Token table; also the head of models that tie the two."""

    def __init__(self, vocab: int, hidden: int, dtype: jnp.dtype) -> None:
        self.embedding = matrix((vocab, hidden), ("vocab", "embed"), dtype)
        self.dtype = dtype

    def __call__(self, tokens: jax.Array) -> jax.Array:  # [T] -> [T, E]
        return take(self.embedding.get_value(), tokens, self.dtype)

    def logits(self, x: jax.Array) -> jax.Array:  # [S, E] -> [S, V] float32
        return linear(x, self.embedding.get_value(), jnp.dtype(jnp.float32))
