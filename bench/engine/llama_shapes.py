"""The configuration of Llama 3.1 8B, for which the GPU's figures are, and of a toy like it."""

from __future__ import annotations

from jaxserve.models.config import LayerConfig, Llama3Scaling, ModelConfig, RopeConfig

_ROPE = RopeConfig(theta=500_000.0, scaling=Llama3Scaling(8.0, 1.0, 4.0, original_context=8192))


def llama_8b(layers: int = 32, max_position_embeddings: int = 131_072) -> ModelConfig:
    """As in its config.json, with this number of layers."""
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        layers=(LayerConfig(_ROPE),) * layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=max_position_embeddings,
    )


def toy_llama() -> ModelConfig:
    """A Llama small enough for any CPU."""
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=256,
        hidden_size=64,
        intermediate_size=64,
        layers=(LayerConfig(_ROPE),),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
    )
