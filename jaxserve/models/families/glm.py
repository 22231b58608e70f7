"""GLM-4.5 (Zhipu AI 2025): a part of each head is rotated, and after the first layers experts are
chosen by sigmoids with a bias for balance, beside shared ones."""

from __future__ import annotations

import jax.numpy as jnp

from jaxserve.models.config import LayerConfig, ModelConfig, MoEConfig
from jaxserve.models.decoder import Decoder, DecoderLayer
from jaxserve.models.hf_config import HFConfig, layers, read_config, rope


class Glm4MoeLayer(DecoderLayer):
    def __init__(self, config: ModelConfig, layer: LayerConfig, dtype: jnp.dtype) -> None:
        norm = "head" if config.qk_norm else None
        options = {"qkv_bias": config.attention_bias, "qk_norm": norm}
        super().__init__(config, layer, dtype, attention=options)


class Glm4MoeForCausalLM(Decoder):
    layer_class = Glm4MoeLayer

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        dense, rotation = hf["first_k_dense_replace"], rope({"partial_rotary_factor": 0.5, **hf})
        moe = MoEConfig(
            num_experts=hf["n_routed_experts"],
            experts_per_token=hf["num_experts_per_tok"],
            intermediate_size=hf["moe_intermediate_size"],
            renormalize=hf["norm_topk_prob"],
            scores="sigmoid",
            groups=hf["n_group"],
            kept_groups=hf["topk_group"],
            scale=float(hf["routed_scaling_factor"]),
            shared_size=hf["n_shared_experts"] * hf["moe_intermediate_size"],
        )
        return read_config(
            hf,
            layers=layers(hf, lambda i: LayerConfig(rotation, experts=i >= dense)),
            moe=moe,
            qk_norm=hf["use_qk_norm"],
            draft_layers=hf.get("num_nextn_predict_layers", hf.get("num_mtp_layers", 1)),
        )
