"""OLMo 2 (OLMo Team 2024): norms after attention and MLP instead of before them, and on q and k."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.cache import LayerCache
from jaxserve.models.config import LayerConfig, ModelConfig
from jaxserve.models.decoder import Decoder
from jaxserve.models.layers import Attention, GatedMLP, RMSNorm
from jaxserve.models.rope import Rope


class Olmo2Layer(nnx.Module):
    """x + norm(attention(x)), then x + norm(mlp(x))."""

    def __init__(self, config: ModelConfig, layer: LayerConfig, dtype: jnp.dtype) -> None:
        hidden, eps, bias = config.hidden_size, config.rms_norm_eps, config.attention_bias
        self.attention = Attention(
            config, layer, dtype, qk_norm="all", qkv_bias=bias, out_bias=bias
        )
        self.post_attention_norm = RMSNorm(hidden, eps, dtype)
        self.mlp = GatedMLP(hidden, config.intermediate_size, config.activation, dtype)
        self.post_feedforward_norm = RMSNorm(hidden, eps, dtype)

    def __call__(
        self, x: jax.Array, rope: Rope | None, cache: LayerCache
    ) -> tuple[jax.Array, LayerCache]:
        attended, cache = self.attention(x, rope, cache)
        x = x + self.post_attention_norm(attended)
        return x + self.post_feedforward_norm(self.mlp(x)), cache


class Olmo2ForCausalLM(Decoder):
    layer_class = Olmo2Layer
