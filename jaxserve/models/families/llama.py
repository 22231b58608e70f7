"""Llama 2 and 3 (Touvron et al. 2023; Dubey et al. 2024), and models of the same architecture, such
as SmolLM2."""

from __future__ import annotations

import jax.numpy as jnp

from jaxserve.models.config import LayerConfig, ModelConfig
from jaxserve.models.decoder import Decoder, DecoderLayer


class LlamaLayer(DecoderLayer):
    """With `attention_bias`, all four projections have one; with `mlp_bias`, the MLP's three."""

    def __init__(self, config: ModelConfig, layer: LayerConfig, dtype: jnp.dtype) -> None:
        bias = config.attention_bias
        super().__init__(config, layer, dtype, attention={"qkv_bias": bias, "out_bias": bias})


class LlamaForCausalLM(Decoder):
    layer_class = LlamaLayer
