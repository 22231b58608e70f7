"""OLMo 2 (OLMo Team 2024): norms after attention and MLP instead of before them, and on q and k.
OLMo 3 (OLMo Team 2025): the same with windows, and rope that is scaled in full layers alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.cache import LayerCache
from jaxserve.models.config import LayerConfig, ModelConfig
from jaxserve.models.decoder import Decoder
from jaxserve.models.hf_config import HFConfig, layer_types, layers, read_config, rope
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

    def __call__(self, x: jax.Array, rope: Rope, cache: LayerCache) -> tuple[jax.Array, LayerCache]:
        attended, cache = self.attention(x, rope, cache)
        x = x + self.post_attention_norm(attended)
        return x + self.post_feedforward_norm(self.mlp(x)), cache


class Olmo2ForCausalLM(Decoder):
    layer_class = Olmo2Layer


class Olmo3ForCausalLM(Decoder):
    layer_class = Olmo2Layer

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        sliding = layer_types(hf, lambda i: (i + 1) % 4 != 0)
        theta = 500_000.0
        if "sliding_attention" in (hf["rope_parameters"] or {}):
            local = rope(hf, theta, "sliding_attention")
        else:
            local = rope({**hf, "rope_parameters": None, "rope_scaling": None}, theta)
        windowed = LayerConfig(local, hf["sliding_window"])
        full = LayerConfig(rope(hf, theta, "full_attention"))
        return read_config(hf, layers=layers(hf, lambda i: windowed if sliding[i] else full))
