"""Phi-3 (Abdin et al. 2024) and Phi-4, which share a class: Llama with fused weights, LongRoPE, and
in the small Phi-4 only a part of each head is rotated."""

from __future__ import annotations

from jaxserve.models.config import LayerConfig, ModelConfig
from jaxserve.models.decoder import Decoder
from jaxserve.models.hf_config import HFConfig, layers, read_config, rope


class Phi3ForCausalLM(Decoder):
    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        layer = LayerConfig(rope(hf), window=hf["sliding_window"])
        return read_config(hf, layers=layers(hf, lambda _: layer), attention_bias=False)
