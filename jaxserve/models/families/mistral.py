"""Mistral (Jiang et al. 2023): Llama with a sliding window; Mixtral (Jiang et al. 2024): the same
with experts; Ministral 3 (Mistral AI 2025): YaRN, and queries that grow with their positions."""

from __future__ import annotations

from jaxserve.models.config import LayerConfig, ModelConfig, MoEConfig, QueryScaling
from jaxserve.models.decoder import Decoder
from jaxserve.models.fields import check
from jaxserve.models.hf_config import ROPE_FIELDS, HFConfig, layers, read_config, require, rope


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


_ROPE = {  # of a Ministral that has none
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


class Ministral3ForCausalLM(Decoder):
    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        raw = dict(hf["rope_parameters"] or hf.get("rope_scaling") or _ROPE)
        check(raw, ROPE_FIELDS)
        scaling = QueryScaling(
            float(require(raw, "llama_4_scaling_beta")),
            require(raw, "original_max_position_embeddings"),
        )
        rotation = rope({**hf, "rope_parameters": raw}, scales_queries=True)
        layer = LayerConfig(rotation, hf["sliding_window"], query_scaling=scaling)
        return read_config(hf, layers=layers(hf, lambda _: layer))
