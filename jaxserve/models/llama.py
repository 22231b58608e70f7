"""Llama (Touvron et al. 2023) and the models that share its shape, SmolLM2 among them."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.config import ModelConfig
from jaxserve.models.cache import CacheSpec, LayerCache
from jaxserve.models.layers import Attention, Embedding, GatedMLP, RMSNorm, Rope, rope_angles


class LlamaLayer(nnx.Module):
    """Pre-norm block: x + attention(norm x), then x + mlp(norm x)."""

    def __init__(self, config: ModelConfig, dtype: jnp.dtype) -> None:
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_norm = RMSNorm(hidden, eps, dtype)
        self.attention = Attention(
            hidden,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            dtype,
        )
        self.post_attention_norm = RMSNorm(hidden, eps, dtype)
        self.mlp = GatedMLP(hidden, config.intermediate_size, dtype)

    def __call__(self, x: jax.Array, rope: Rope, cache: LayerCache) -> tuple[jax.Array, LayerCache]:
        attended, cache = self.attention(self.input_norm(x), rope, cache)
        x = x + attended
        return x + self.mlp(self.post_attention_norm(x)), cache


@partial(jax.jit, static_argnums=0)
def _run_layer(
    graphdef: nnx.GraphDef[LlamaLayer],
    state: nnx.State,
    x: jax.Array,
    rope: Rope,
    cache: LayerCache,
) -> tuple[jax.Array, LayerCache]:
    # Equal layers share one trace of this function: tracing costs a layer, not L of them.
    return nnx.merge(graphdef, state)(x, rope, cache)


class LlamaForCausalLM(nnx.Module):
    """The whole decoder. Parameters start empty; checkpoints fill them."""

    def __init__(self, config: ModelConfig, dtype: jnp.dtype) -> None:
        self.head_dim, self.rope_theta = config.head_dim, config.rope_theta
        self.embed = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.layers = nnx.List([LlamaLayer(config, dtype) for _ in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        if config.tie_word_embeddings:
            self.head = self.embed
        else:
            self.head = Embedding(config.vocab_size, config.hidden_size, dtype)

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """What each layer caches, in order."""
        return tuple(layer.attention.cache_spec for layer in self.layers)

    def __call__(
        self, tokens: jax.Array, positions: jax.Array, caches: list[LayerCache]
    ) -> tuple[jax.Array, list[LayerCache]]:
        """Hidden states [T, E] of tokens [T] at positions [T], and the caches written."""
        x = self.embed(tokens)
        rope = rope_angles(positions, self.head_dim, self.rope_theta)
        written = []
        for layer, cache in zip(self.layers, caches, strict=True):
            x, cache = _run_layer(*nnx.split(layer), x, rope, cache)
            written.append(cache)
        return self.norm(x), written

    def logits(self, x: jax.Array) -> jax.Array:
        """Logits [S, V] float32 of hidden states [S, E]."""
        return self.head.logits(x)
