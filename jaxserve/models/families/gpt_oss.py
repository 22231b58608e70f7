"""gpt-oss (OpenAI 2025): experts with a clamped unit and biases, attention sinks, a window in every
other layer, YaRN."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxserve.models.config import LayerConfig, ModelConfig, MoEConfig
from jaxserve.models.decoder import Decoder, DecoderLayer
from jaxserve.models.hf_config import HFConfig, layer_types, layers, read_config, require, rope

_ROPE = {  # of a file that has none
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}


@dataclass(frozen=True)
class ClampedUnit:
    """(up + 1) * gate * sigmoid(alpha * gate), gate at most the limit, up within it of 0."""

    alpha: float
    limit: float

    def __call__(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        gate, up = jnp.minimum(gate, self.limit), jnp.clip(up, -self.limit, self.limit)
        return (up + 1) * gate * jax.nn.sigmoid(self.alpha * gate)


class GptOssLayer(DecoderLayer):
    def __init__(self, config: ModelConfig, layer: LayerConfig, dtype: jnp.dtype) -> None:
        bias, moe = config.attention_bias, config.moe
        assert moe is not None
        super().__init__(
            config,
            layer,
            dtype,
            attention={"qkv_bias": bias, "out_bias": bias, "sinks": True},
            moe={"unit": ClampedUnit(moe.alpha, moe.limit), "bias": True},
        )


class GptOssForCausalLM(Decoder):
    layer_class = GptOssLayer

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        sliding = layer_types(hf, lambda i: i % 2 == 0)
        scaling = hf["rope_parameters"] or hf.get("rope_scaling") or _ROPE
        rotation = rope({**hf, "rope_parameters": scaling}, theta=150_000.0)
        window = hf["sliding_window"]
        return read_config(
            hf,
            layers=layers(
                hf, lambda i: LayerConfig(rotation, window if sliding[i] else None, experts=True)
            ),
            moe=MoEConfig(
                num_experts=hf["num_local_experts"],
                experts_per_token=hf["num_experts_per_tok"],
                intermediate_size=require(hf, "intermediate_size"),
                alpha=float(hf["swiglu_alpha"]),
                limit=float(hf["swiglu_limit"]),
            ),
        )
