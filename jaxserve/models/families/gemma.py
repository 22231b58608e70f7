"""Gemma 2 (Gemma Team 2024) and Gemma 3 (2025), text: local and global layers, four norms a layer
with 1 + w, scaled embeddings. Gemma 2 has softcaps, Gemma 3 norms on q and k and another rope in
local layers."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.cache import LayerCache
from jaxserve.models.config import LayerConfig, ModelConfig, RopeConfig
from jaxserve.models.decoder import Decoder
from jaxserve.models.hf_config import HFConfig, layer_types, layers, read_config, require, rope
from jaxserve.models.layers import Attention, GatedMLP, RMSNorm
from jaxserve.models.rope import Rope


class GemmaLayer(nnx.Module):
    """Norms before and after attention and MLP: x + norm(attention(norm x)), likewise the MLP."""

    qk_norm: ClassVar[Literal["head"] | None] = None

    def __init__(self, config: ModelConfig, layer: LayerConfig, dtype: jnp.dtype) -> None:
        def norm() -> RMSNorm:
            return RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, offset=True)

        bias = config.attention_bias
        self.input_norm = norm()
        self.attention = Attention(
            config,
            layer,
            dtype,
            qkv_bias=bias,
            out_bias=bias,
            qk_norm=self.qk_norm,
            norm_offset=True,
        )
        self.post_attention_norm = norm()
        self.pre_feedforward_norm = norm()
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, config.activation, dtype)
        self.post_feedforward_norm = norm()

    def __call__(self, x: jax.Array, rope: Rope, cache: LayerCache) -> tuple[jax.Array, LayerCache]:
        attended, cache = self.attention(self.input_norm(x), rope, cache)
        x = x + self.post_attention_norm(attended)
        return x + self.post_feedforward_norm(self.mlp(self.pre_feedforward_norm(x))), cache


class Gemma2ForCausalLM(Decoder):
    layer_class = GemmaLayer
    norm_offset = True

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        sliding = layer_types(hf, lambda i: i % 2 == 0)
        return _read_config(hf, sliding, local=rope(hf), global_=rope(hf))


class Gemma3Layer(GemmaLayer):
    qk_norm = "head"


class Gemma3ForCausalLM(Decoder):
    layer_class = Gemma3Layer
    norm_offset = True

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        pattern = hf.get("sliding_window_pattern") or hf.get("_sliding_window_pattern") or 6
        sliding = layer_types(hf, lambda i: (i + 1) % pattern != 0)
        if "sliding_attention" in (hf.get("rope_parameters") or {}):
            local = rope(hf, layer_type="sliding_attention")
        else:
            local = RopeConfig(hf.get("rope_local_base_freq", 10_000.0))
        global_ = rope(hf, theta=1_000_000.0, layer_type="full_attention")
        return _read_config(hf, sliding, local, global_)


def _read_config(
    hf: HFConfig, sliding: tuple[bool, ...], local: RopeConfig, global_: RopeConfig
) -> ModelConfig:
    windowed = LayerConfig(local, hf["sliding_window"])
    full = LayerConfig(global_)
    return read_config(
        hf,
        layers=layers(hf, lambda i: windowed if sliding[i] else full),
        embedding_scale=math.sqrt(require(hf, "hidden_size")),
        attention_scale=hf["query_pre_attn_scalar"] ** -0.5,
        attention_softcap=hf.get("attn_logit_softcapping"),
        final_softcap=hf["final_logit_softcapping"],
    )
