"""gpt-oss (OpenAI 2025): experts with a clamped unit and biases, attention sinks, a window in every
other layer, YaRN."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxserve.models.config import LayerConfig, ModelConfig, MoEConfig
from jaxserve.models.decoder import Decoder, DecoderLayer
from jaxserve.models.hf_config import HFConfig, layer_types, layers, read_config, require, rope

ALPHA, LIMIT = 1.702, 7.0


def clamped_unit(gate: jax.Array, up: jax.Array) -> jax.Array:
    """(up + 1) * gate * sigmoid(1.702 gate), gate at most 7, up within 7 of 0."""
    gate, up = jnp.minimum(gate, LIMIT), jnp.clip(up, -LIMIT, LIMIT)
    return (up + 1) * gate * jax.nn.sigmoid(ALPHA * gate)


class GptOssLayer(DecoderLayer):
    def __init__(self, config: ModelConfig, layer: LayerConfig, dtype: jnp.dtype) -> None:
        bias = config.attention_bias
        super().__init__(
            config,
            layer,
            dtype,
            attention={"qkv_bias": bias, "out_bias": bias, "sinks": True},
            moe={"unit": clamped_unit, "bias": True},
        )


class GptOssForCausalLM(Decoder):
    layer_class = GptOssLayer

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        sliding = layer_types(hf, lambda i: i % 2 == 0)
        window, rotation = hf.get("sliding_window", 128), rope(hf, theta=150_000.0)
        return read_config(
            {"attention_bias": True, **hf},
            layers=layers(
                hf, lambda i: LayerConfig(rotation, window if sliding[i] else None, experts=True)
            ),
            moe=MoEConfig(
                num_experts=require(hf, "num_local_experts"),
                experts_per_token=require(hf, "num_experts_per_tok"),
                intermediate_size=require(hf, "intermediate_size"),
            ),
        )
