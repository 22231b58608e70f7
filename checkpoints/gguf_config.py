"""Translates the metadata of a GGUF file to the config.json that Hugging Face has for the model."""

from __future__ import annotations

from typing import Any

import numpy as np

from checkpoints.gguf_header import GGUFHeader
from jaxserve.errors import CheckpointError, UnsupportedModelError

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
MIXTRAL = "MixtralForCausalLM"  # in GGUF: llama, with experts
ROPE_FACTORS = "rope_freqs.weight"  # Llama 3's scaling: the divisor of each frequency
_F32 = 0
_GEMMA3_27B_LAYERS = 62


def hf_config(header: GGUFHeader) -> dict[str, Any]:
    """The fields of config.json.

    Raises:
        UnsupportedModelError: an architecture or a feature that isn't implemented.
        CheckpointError: a key is missing.
    """
    name = header.require("general.architecture", str)
    if name not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{header.path}: the GGUF architecture {name} isn't implemented; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    heads = header.require(f"{name}.attention.head_count", int)
    hidden = header.require(f"{name}.embedding_length", int)
    head_dim = header.get(f"{name}.attention.key_length", int, hidden // max(heads, 1))
    experts = header.get(f"{name}.expert_count", int, 0)
    layers = header.require(f"{name}.block_count", int)
    if layers > len(header.tensors):
        raise CheckpointError(
            f"{header.path}: {name}.block_count is {layers}, but there are only "
            f"{len(header.tensors)} tensors"
        )
    refused = {
        "experts": experts > 0 and name not in ("llama", "qwen3moe"),
        "partial rope": header.get(f"{name}.rope.dimension_count", int, head_dim) != head_dim,
        "values of another head size than keys": (
            header.get(f"{name}.attention.value_length", int, head_dim) != head_dim
        ),
    }
    for feature, present in refused.items():
        if present:
            raise UnsupportedModelError(f"{header.path}: {feature} isn't implemented for GGUF")
    # llama.cpp ends an output at either of them.
    ends = (header.token_id("eos"), header.token_id("eot"))
    config = {
        "architectures": [ARCHITECTURES[name]],
        "vocab_size": header.get(f"{name}.vocab_size", int, None)
        or len(header.require("tokenizer.ggml.tokens", list)),
        "hidden_size": hidden,
        "intermediate_size": header.require(f"{name}.feed_forward_length", int),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": header.get(f"{name}.attention.head_count_kv", int, heads),
        "head_dim": head_dim,
        "max_position_embeddings": header.require(f"{name}.context_length", int),
        "rms_norm_eps": header.require(f"{name}.attention.layer_norm_rms_epsilon", float),
        "rope_theta": header.get(f"{name}.rope.freq_base", float, 10_000.0),
        "rope_scaling": _rope_scaling(header, name, head_dim),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "bos_token_id": header.token_id("bos"),
        "eos_token_id": list(dict.fromkeys(i for i in ends if i is not None)),
    }
    if experts and name == "llama":
        config["architectures"] = [MIXTRAL]
    if experts:
        config |= _experts(header, name, experts)
    return config | (_gemma3(header, config) if name == "gemma3" else {})


def _experts(header: GGUFHeader, name: str, experts: int) -> dict[str, Any]:
    shared = {"num_experts_per_tok": header.require(f"{name}.expert_used_count", int)}
    if name == "llama":
        return shared | {"num_local_experts": experts}
    size = header.require(f"{name}.expert_feed_forward_length", int)
    # llama.cpp always makes the chosen experts' weights sum to 1.
    moe = {"num_experts": experts, "moe_intermediate_size": size, "norm_topk_prob": True}
    return shared | moe


def _gemma3(header: GGUFHeader, config: dict[str, Any]) -> dict[str, Any]:
    # The file doesn't have it. As in llama.cpp, the one size with another value is known by its
    # number of layers.
    of_27b = config["num_hidden_layers"] == _GEMMA3_27B_LAYERS
    per_head = config["hidden_size"] // max(config["num_attention_heads"], 1)
    return {
        "sliding_window": header.require("gemma3.attention.sliding_window", int),
        "sliding_window_pattern": header.get("gemma3.attention.sliding_window_pattern", int, 6),
        "query_pre_attn_scalar": per_head if of_27b else config["head_dim"],
    }


def _rope_scaling(header: GGUFHeader, name: str, head_dim: int) -> dict[str, Any] | None:
    if ROPE_FACTORS in header.tensors:
        tensor = header.tensors[ROPE_FACTORS]
        if tensor.ggml_type != _F32:
            raise UnsupportedModelError(f"{header.path}: {ROPE_FACTORS} isn't float32")
        count = head_dim // 2
        if tensor.shape != (count,):
            raise CheckpointError(
                f"{header.path}: {ROPE_FACTORS} has shape {list(tensor.shape)}, not [{count}]"
            )
        factors = np.fromfile(tensor.path, "<f4", count, offset=tensor.offset).tolist()
        return {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": 1.0,
        }
    prefix = f"{name}.rope.scaling"
    kind = header.get(f"{prefix}.type", str, "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise UnsupportedModelError(
            f"{header.path}: rope scaling ({kind}) isn't implemented for GGUF"
        )
    return {
        "rope_type": kind,
        "factor": header.require(f"{prefix}.factor", float),
        "original_max_position_embeddings": header.get(
            f"{prefix}.original_context_length", int, None
        ),
    }
