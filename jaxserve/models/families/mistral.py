"""Mistral (Jiang et al. 2023): Llama with a sliding window; Mixtral (Jiang et al. 2024): the same
with experts."""

from __future__ import annotations

from jaxserve.models.config import LayerConfig, ModelConfig, MoEConfig
from jaxserve.models.decoder import Decoder
from jaxserve.models.hf_config import HFConfig, layers, read_config, require, rope


class MistralForCausalLM(Decoder):
    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        layer = LayerConfig(rope(hf), window=hf["sliding_window"])
        return read_config(hf, layers=layers(hf, lambda _: layer))


class MixtralForCausalLM(Decoder):
    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        layer = LayerConfig(rope(hf, theta=1_000_000.0), hf["sliding_window"], experts=True)
        moe = MoEConfig(
            num_experts=hf["num_local_experts"],
            experts_per_token=hf["num_experts_per_tok"],
            intermediate_size=require(hf, "intermediate_size"),
        )
        return read_config(hf, layers=layers(hf, lambda _: layer), moe=moe)
