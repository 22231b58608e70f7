"""The decoder that all families share: embedding, layers, a norm, the output head."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.cache import Cache, CacheSpec, LayerCache, LayerCaches
from jaxserve.models.config import LayerConfig, ModelConfig
from jaxserve.models.hf_config import HFConfig, read_config
from jaxserve.models.layers import Attention, Embedding, GatedMLP, RMSNorm
from jaxserve.models.moe import Gated, MoE
from jaxserve.models.rope import Rope, rope_of


class DecoderLayer(nnx.Module):
    """Pre-norm block: x + attention(norm x), then x + mlp(norm x).

    Args:
        attention: keyword arguments of Attention.
        moe: keyword arguments of MoE, for layers that have experts.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: LayerConfig,
        dtype: jnp.dtype,
        *,
        attention: dict[str, Any] | None = None,
        moe: dict[str, Any] | None = None,
    ) -> None:
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.residual_scale = config.residual_scale
        self.input_norm = RMSNorm(hidden, eps, dtype)
        self.attention = Attention(config, layer, dtype, **attention or {})
        self.post_attention_norm = RMSNorm(hidden, eps, dtype)
        if layer.experts:
            assert config.moe is not None
            options: dict[str, Any] = {"unit": Gated(config.activation)} | (moe or {})
            if config.moe.shared_size:
                shared = (hidden, config.moe.shared_size, config.activation, dtype)
                options["shared"] = GatedMLP(*shared, bias=config.mlp_bias)
            self.moe = MoE(hidden, config.moe, dtype, **options)
        else:
            sizes = (hidden, config.intermediate_size)
            self.mlp = GatedMLP(*sizes, config.activation, dtype, bias=config.mlp_bias)

    def __call__(self, x: jax.Array, rope: Rope, cache: LayerCache) -> tuple[jax.Array, LayerCache]:
        attended, cache = self.attention(self.input_norm(x), rope, cache)
        x = self._added(x, attended)
        normed = self.post_attention_norm(x)
        if hasattr(self, "moe"):
            return self._added(x, self.moe(normed, cache.num_tokens)), cache
        return self._added(x, self.mlp(normed)), cache

    def _added(self, x: jax.Array, change: jax.Array) -> jax.Array:
        return x + (change if self.residual_scale == 1 else change * self.residual_scale)


@partial(jax.jit, static_argnums=0)
def _run_layer(
    graphdef: nnx.GraphDef[nnx.Module],
    state: nnx.State,
    x: jax.Array,
    rope: Rope,
    cache: LayerCache,
) -> tuple[jax.Array, LayerCache]:
    # Equal layers share one trace of this function, so that one layer is traced instead of L.
    return nnx.merge(graphdef, state)(x, rope, cache)


class Decoder(nnx.Module):
    """The whole model. Parameters are zeros until a checkpoint is loaded. Families set:

    Attributes:
        layer_class: takes (config, layer, dtype).
        norm_offset: of the last norm.
    """

    layer_class: ClassVar[Any] = DecoderLayer
    norm_offset: ClassVar[bool] = False

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        """Reads config.json's contents.

        Raises:
            UnsupportedModelError: a field asks for something that isn't implemented, or is missing.
        """
        return read_config(hf)

    def __init__(self, config: ModelConfig, dtype: jnp.dtype) -> None:
        hidden = config.hidden_size
        self.config = config
        self.embed = Embedding(config.vocab_size, hidden, dtype)
        self.layers = nnx.List([self.layer_class(config, layer, dtype) for layer in config.layers])
        self.norm = RMSNorm(hidden, config.rms_norm_eps, dtype, offset=self.norm_offset)
        if config.tie_word_embeddings:
            self.head = self.embed
        else:
            self.head = Embedding(config.vocab_size, hidden, dtype)

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        """What each layer caches, in order."""
        return tuple(layer.attention.cache_spec for layer in self.layers)

    def __call__(
        self, tokens: jax.Array, positions: jax.Array, caches: LayerCaches[Cache]
    ) -> jax.Array:
        """Hidden states [T, E] of tokens [T] at positions [T]; for the caches see run()."""
        return self.norm(
            self.run(range(len(self.layers)), self.embedded(tokens), positions, caches)
        )

    def embedded(self, tokens: jax.Array) -> jax.Array:
        """Input of the first layer, [T, E], for tokens [T]."""
        x = self.embed(tokens)
        scale = self.config.embedding_scale
        return x if scale is None else x * jnp.asarray(scale, x.dtype)

    def run(
        self, layers: range, x: jax.Array, positions: jax.Array, caches: LayerCaches[Cache]
    ) -> jax.Array:
        """Output [T, E] of some of the layers for x [T, E].

        Args:
            caches: of these layers; each is replaced by one with the new keys and values.
        """
        config = self.config
        settings = [config.layers[i] for i in layers]
        ropes: dict[object, Rope] = {}
        for layer in settings:
            kind = (layer.rope, layer.query_scaling)
            if kind not in ropes:
                context = config.max_position_embeddings
                ropes[kind] = rope_of(positions, layer, config.rope_dim, context)
        for n, (i, layer) in enumerate(zip(layers, settings, strict=True)):
            rope = ropes[layer.rope, layer.query_scaling]
            x, caches[n] = _run_layer(*nnx.split(self.layers[i]), x, rope, caches[n])
        return x

    def logits(self, x: jax.Array) -> jax.Array:
        """Logits [S, V] float32 of hidden states [S, E]."""
        logits = self.head.logits(x)
        if self.config.logits_divisor != 1:
            logits /= self.config.logits_divisor
        cap = self.config.final_softcap
        return logits if cap is None else cap * jnp.tanh(logits / cap)
