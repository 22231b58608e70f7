"""open_checkpoint() on real and golden checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from checkpoints import open_checkpoint
from jaxserve.models.config import LayerConfig, RopeConfig


def test_the_tiny_llama_opens(tiny_llama: Path, tiny_llama_golden: dict[str, Any]) -> None:
    checkpoint = open_checkpoint(tiny_llama)
    assert (checkpoint.config.head_dim, checkpoint.config.eos_token_ids) == (16, (257,))
    for name in checkpoint.shapes():
        np.testing.assert_array_equal(checkpoint.read(name), tiny_llama_golden[f"weight:{name}"])


def test_the_demo_model_opens(demo_model: Path) -> None:
    checkpoint = open_checkpoint(demo_model)
    config = checkpoint.config
    assert (config.num_hidden_layers, config.hidden_size, config.head_dim) == (30, 576, 64)
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    assert config.tie_word_embeddings
    assert config.layers == (LayerConfig(RopeConfig(100_000.0)),) * 30
    assert config.max_position_embeddings == 8192
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))
    assert len(checkpoint.shapes()) == 272
    embedding = checkpoint.read("model.embed_tokens.weight")
    assert embedding.shape == (49_152, 576)
    assert np.isfinite(embedding).all()
