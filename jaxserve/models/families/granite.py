"""Granite 3 (IBM 2024): Llama with four multipliers. The dense models of Granite 4 (IBM 2025) have
the class of its hybrids, with attention in every layer, and no experts beside the shared MLP."""

from __future__ import annotations

from typing import Any

from jaxserve.models.config import LayerConfig, ModelConfig
from jaxserve.models.decoder import Decoder
from jaxserve.models.families.llama import LlamaLayer
from jaxserve.models.hf_config import HFConfig, layers, read_config, require, rope


def _multipliers(hf: HFConfig) -> dict[str, Any]:
    return {
        "attention_scale": float(hf["attention_multiplier"]),
        "embedding_scale": float(hf["embedding_multiplier"]),
        "residual_scale": float(hf["residual_multiplier"]),
        "logits_divisor": float(hf["logits_scaling"]),
    }


class GraniteForCausalLM(Decoder):
    layer_class = LlamaLayer

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        return read_config(hf, **_multipliers(hf))


class GraniteMoeHybridForCausalLM(Decoder):
    layer_class = LlamaLayer

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        for name in ("layer_types", "num_local_experts"):
            require(hf, name)  # without them a model has Mamba layers and experts
        layer = LayerConfig(rope(hf) if hf["position_embedding_type"] == "rope" else None)
        return read_config(
            {**hf, "intermediate_size": hf["shared_intermediate_size"]},
            layers=layers(hf, lambda _: layer),
            **_multipliers(hf),
        )
