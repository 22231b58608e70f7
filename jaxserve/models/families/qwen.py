"""Qwen 2 and 2.5 (Yang et al. 2024): biases on q, k and v. Qwen 3 (Yang et al. 2025): norms on the
heads of q and k instead; with experts too."""

from __future__ import annotations

import jax.numpy as jnp

from jaxserve.models.config import LayerConfig, ModelConfig, MoEConfig
from jaxserve.models.decoder import Decoder, DecoderLayer
from jaxserve.models.hf_config import HFConfig, layer_types, layers, read_config, require, rope


def _layers(hf: HFConfig, experts: bool = False) -> tuple[LayerConfig, ...]:
    window = hf.get("sliding_window") if hf.get("use_sliding_window", False) else None
    first = hf.get("max_window_layers", 28)
    sliding = layer_types(hf, lambda i: window is not None and i >= first)
    dense = set(hf.get("mlp_only_layers") or ())
    step = hf.get("decoder_sparse_step", 1)
    rotation = rope(hf)
    return layers(
        hf,
        lambda i: LayerConfig(
            rotation,
            window if sliding[i] else None,
            experts and i not in dense and (i + 1) % step == 0,
        ),
    )


class Qwen2Layer(DecoderLayer):
    def __init__(self, config: ModelConfig, layer: LayerConfig, dtype: jnp.dtype) -> None:
        super().__init__(config, layer, dtype, attention={"qkv_bias": True})


class Qwen2ForCausalLM(Decoder):
    layer_class = Qwen2Layer

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        return read_config(hf, layers=_layers(hf))


class Qwen3Layer(DecoderLayer):
    def __init__(self, config: ModelConfig, layer: LayerConfig, dtype: jnp.dtype) -> None:
        bias = config.attention_bias
        options = {"qk_norm": "head", "qkv_bias": bias, "out_bias": bias}
        super().__init__(config, layer, dtype, attention=options)


class Qwen3ForCausalLM(Decoder):
    layer_class = Qwen3Layer

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        return read_config(hf, layers=_layers(hf))


class Qwen3MoeForCausalLM(Decoder):
    layer_class = Qwen3Layer

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        moe = MoEConfig(
            num_experts=require(hf, "num_experts"),
            experts_per_token=require(hf, "num_experts_per_tok"),
            intermediate_size=require(hf, "moe_intermediate_size"),
            renormalize=bool(hf.get("norm_topk_prob", False)),
        )
        return read_config(hf, layers=_layers(hf, experts=True), moe=moe)
