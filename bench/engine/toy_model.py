"""A random Llama of one small layer, with which the host's work is most of a step."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

TOY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def write_toy(folder: Path) -> Path:
    """Writes config, weights and tokenizer into the folder, and returns it."""
    rng = np.random.default_rng(0)
    prefix = "model.layers.0."
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (256, 64)}
    shapes |= {f"{prefix}self_attn.{n}_proj.weight": (64, 64) for n in "qkvo"}
    shapes |= {f"{prefix}mlp.{n}_proj.weight": (64, 64) for n in ("gate", "up", "down")}
    weights = {n: rng.standard_normal(s).astype(np.float32) * 0.1 for n, s in shapes.items()}
    for norm in (f"{prefix}input_layernorm", f"{prefix}post_attention_layernorm", "model.norm"):
        weights[f"{norm}.weight"] = np.ones(64, np.float32)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(TOY))
    vocabulary = {f"w{i}": i for i in range(256)}
    Tokenizer(WordLevel(vocabulary)).save(str(folder / "tokenizer.json"))
    return folder
