"""Qwen 2 and 2.5 (Yang et al. 2024): biases on q, k and v. Qwen 3 (Yang et al. 2025): norms on the
heads of q and k instead; with experts too."""

from __future__ import annotations

import jax.numpy as jnp

from jaxserve.models.config import LayerConfig, ModelConfig, MoEConfig
from jaxserve.models.decoder import Decoder, DecoderLayer
from jaxserve.models.hf_config import HFConfig, layer_types, layers, read_config, rope


def _layers(hf: HFConfig) -> tuple[LayerConfig, ...]:
    window, first = _window(hf), hf["max_window_layers"]
    sliding = layer_types(hf, lambda i: window is not None and i >= first)
    rotation = rope(hf)
    return layers(hf, lambda i: LayerConfig(rotation, window if sliding[i] else None))


def _window(hf: HFConfig) -> int | None:
    return hf["sliding_window"] if hf["use_sliding_window"] else None


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
        rotation, window = rope(hf), _window(hf)
        dense, step = set(hf["mlp_only_layers"] or ()), hf["decoder_sparse_step"]
        moe = MoEConfig(
            num_experts=hf["num_experts"],
            experts_per_token=hf["num_experts_per_tok"],
            intermediate_size=hf["moe_intermediate_size"],
            renormalize=hf["norm_topk_prob"],
        )
        kinds = layers(
            hf, lambda i: LayerConfig(rotation, window, i not in dense and (i + 1) % step == 0)
        )
        return read_config(hf, layers=kinds, moe=moe)
