"""Qwen 2 and 2.5 (Yang et al. 2024): biases on q, k and v; with experts beside a shared one too.
Qwen 3 (Yang et al. 2025): norms on the heads of q and k instead; with experts too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxserve.models.config import LayerConfig, ModelConfig, MoEConfig
from jaxserve.models.decoder import Decoder, DecoderLayer
from jaxserve.models.hf_config import HFConfig, layer_types, layers, read_config, rope


def _layers(
    hf: HFConfig,
    is_windowed: Callable[[int], bool],
    has_experts: Callable[[int], bool] = lambda i: False,
) -> tuple[LayerConfig, ...]:
    window, rotation = _window(hf), rope(hf)
    sliding = layer_types(hf, lambda i: window is not None and is_windowed(i))
    return layers(
        hf, lambda i: LayerConfig(rotation, window if sliding[i] else None, has_experts(i))
    )


def _after_first(hf: HFConfig) -> Callable[[int], bool]:
    first = hf["max_window_layers"]
    return lambda i: i >= first


def _has_experts(hf: HFConfig) -> Callable[[int], bool]:
    dense, step = set(hf["mlp_only_layers"] or ()), hf["decoder_sparse_step"]
    return lambda i: i not in dense and (i + 1) % step == 0


def _experts(hf: HFConfig, **changes: Any) -> MoEConfig:
    return MoEConfig(
        num_experts=hf["num_experts"],
        experts_per_token=hf["num_experts_per_tok"],
        intermediate_size=hf["moe_intermediate_size"],
        renormalize=hf["norm_topk_prob"],
        **changes,
    )


def _window(hf: HFConfig) -> int | None:
    return hf["sliding_window"] if hf["use_sliding_window"] else None


class Qwen2Layer(DecoderLayer):
    def __init__(self, config: ModelConfig, layer: LayerConfig, dtype: jnp.dtype) -> None:
        super().__init__(config, layer, dtype, attention={"qkv_bias": True})


class Qwen2ForCausalLM(Decoder):
    layer_class = Qwen2Layer

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        return read_config(hf, layers=_layers(hf, _after_first(hf)))


class Qwen2MoeLayer(DecoderLayer):
    def __init__(self, config: ModelConfig, layer: LayerConfig, dtype: jnp.dtype) -> None:
        super().__init__(config, layer, dtype, attention={"qkv_bias": config.attention_bias})


class Qwen2MoeForCausalLM(Decoder):
    layer_class = Qwen2MoeLayer

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        moe = _experts(hf, shared_size=hf["shared_expert_intermediate_size"], shared_gate=True)
        last = hf["max_window_layers"]  # here every other of the first layers has the window
        kinds = _layers(hf, lambda i: i % 2 == 0 and i < last, _has_experts(hf))
        return read_config(hf, layers=kinds, moe=moe, attention_bias=hf["qkv_bias"])


class Qwen3Layer(DecoderLayer):
    def __init__(self, config: ModelConfig, layer: LayerConfig, dtype: jnp.dtype) -> None:
        bias = config.attention_bias
        options = {"qk_norm": "head", "qkv_bias": bias, "out_bias": bias}
        super().__init__(config, layer, dtype, attention=options)


class Qwen3ForCausalLM(Decoder):
    layer_class = Qwen3Layer

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        return read_config(hf, layers=_layers(hf, _after_first(hf)))


class Qwen3MoeForCausalLM(Decoder):
    layer_class = Qwen3Layer

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        rotation, window, has_experts = rope(hf), _window(hf), _has_experts(hf)
        kinds = layers(hf, lambda i: LayerConfig(rotation, window, has_experts(i)))
        return read_config(hf, layers=kinds, moe=_experts(hf))
