"""Makes families/NAME.npz with transformers in float32, one for each entry of CONFIGS:

    python tests/golden/make_families.py [NAME ...]

needs torch, transformers 5 and safetensors, and none of this project's code. Random models from
tiny_weights.py that use every feature of their family: windows shorter than the prompts, rope
scaled past its original context, softcaps, tied heads and not. Arrays: `config` (config.json),
`tensors` (JSON of name -> shape), and for i in 0, 1, 2: `ids_i` [T], a prompt and its greedy
continuation of NEW_TOKENS, and `logits_i` [T, V].
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from tiny_weights import make
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
)
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

PROMPT_LENGTHS = (3, 21, 40)
LONG_PROMPT_LENGTHS = (17, 21, 40)  # all past the original context of LongRoPE
SHORT_PROMPT_LENGTHS = (3, 11, 22)  # all within it
NEW_TOKENS = 6

BASE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 9.0],
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
    "head_dim": 8,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama2": {"model_type": "llama", "num_key_value_heads": 4, "head_dim": 12},
    "llama3": {
        "model_type": "llama",
        "tie_word_embeddings": True,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "llama_linear": {
        "model_type": "llama",
        "attention_bias": True,
        "rope_scaling": {"type": "linear", "factor": 4.0},
    },
    "llama_biases": {
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "head_dim": 24,
    },
    "granite": {
        "model_type": "granite",
        "tie_word_embeddings": True,
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.5,
        "residual_multiplier": 0.6,
        "attention_multiplier": 0.4,
    },
    "granite4_dense": {
        "model_type": "granitemoehybrid",
        "tie_word_embeddings": True,
        "layer_types": ["attention", "attention"],
        "num_local_experts": 0,
        "shared_intermediate_size": 72,
        "position_embedding_type": "rope",
        "mamba_n_heads": 4,
        "mamba_d_head": 24,
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.5,
        "residual_multiplier": 0.6,
        "attention_multiplier": 0.4,
        "head_dim": 12,
    },
    "ministral3": {
        "model_type": "ministral3",
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.5,
        },
    },
    "mistral3_wrapper": {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "tie_word_embeddings": False,
        "text_config": BASE | {"model_type": "mistral", "sliding_window": 8},
        "vision_config": VISION | {"model_type": "pixtral"},
    },
    "gemma3_wrapper": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "tie_word_embeddings": True,
        "mm_tokens_per_image": 4,
        "text_config": BASE
        | {
            "model_type": "gemma3_text",
            "sliding_window": 8,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 24,
            "tie_word_embeddings": True,
        },
        "vision_config": VISION | {"model_type": "siglip_vision_model"},
    },
    "mistral": {"model_type": "mistral", "sliding_window": 8},
    "qwen2": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    },
    "qwen3": {
        "model_type": "qwen3",
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "gemma2": {
        "model_type": "gemma2",
        "sliding_window": 8,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 10.0,
        "query_pre_attn_scalar": 24,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 3,
        "sliding_window": 8,
        "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 24,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
    "phi3": {
        "model_type": "phi3",
        "hidden_size": 64,
        "original_max_position_embeddings": 16,
        "partial_rotary_factor": 0.75,
        "rope_scaling": LONGROPE,
        "sliding_window": 12,
    },
    "phi3_short": {
        "model_type": "phi3",
        "hidden_size": 64,
        "original_max_position_embeddings": 32,
        "partial_rotary_factor": 0.75,
        "rope_scaling": LONGROPE,
        "tie_word_embeddings": True,
    },
    "smollm3": {
        "model_type": "smollm3",
        "num_hidden_layers": 4,
        "no_rope_layer_interval": 2,
        "use_sliding_window": True,
        "sliding_window": 8,
        "tie_word_embeddings": True,
    },
    "olmo2": {"model_type": "olmo2"},
    "olmo3": {
        "model_type": "olmo3",
        # With another one transformers rotates the windowed layers by this default all the same.
        "rope_theta": 500000.0,
        "num_hidden_layers": 4,
        "sliding_window": 8,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "glm4_moe": {
        "model_type": "glm4_moe",
        "num_hidden_layers": 3,
        "attention_bias": True,
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "n_shared_experts": 2,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.7,
    },
    "mixtral": {
        "model_type": "mixtral",
        "sliding_window": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        "num_hidden_layers": 3,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "mlp_only_layers": [1],
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 1,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 3,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "norm_topk_prob": False,
        "mlp_only_layers": [1],
        "decoder_sparse_step": 1,
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        "hidden_size": 64,
        "intermediate_size": 96,
        "sliding_window": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "attention_bias": True,
        "hidden_act": "silu",
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 16,
        },
    },
}


def model_class(config: PreTrainedConfig) -> Any:
    wraps = hasattr(config, "text_config")
    return AutoModelForImageTextToText if wraps else AutoModelForCausalLM


def tensors_of(folder: Path) -> dict[str, list[int]]:
    """Names and shapes as the family publishes them."""
    config = AutoConfig.from_pretrained(folder)
    with tempfile.TemporaryDirectory() as saved:
        model_class(config).from_config(config).save_pretrained(saved)
        with safe_open(Path(saved) / "model.safetensors", "numpy") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    if config.tie_word_embeddings:
        shapes.pop("lm_head.weight", None)
    return shapes


def packed(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """The same with gpt-oss' experts [X, in, out] as MXFP4."""
    out = {}
    for name, shape in shapes.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, rows, columns = shape
            out[f"{name}_blocks"] = [experts, columns, rows // 32, 16]
            out[f"{name}_scales"] = [experts, columns, rows // 32]
        else:
            out[name] = shape
    return out


def weights(shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """What transformers loads: MXFP4 unpacked by its own code."""
    made = {name: make(name, tuple(shape)) for name, shape in shapes.items()}
    for name in [n for n in made if n.endswith("_blocks")]:
        stem = name.removesuffix("_blocks")
        blocks, scales = (torch.from_numpy(made.pop(f"{stem}_{x}")) for x in ("blocks", "scales"))
        unpacked = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        made[stem] = unpacked.contiguous().numpy()
    return made


def run(name: str) -> None:
    wraps = "text_config" in CONFIGS[name]
    given = CONFIGS[name] if wraps else BASE | CONFIGS[name]
    vocab = BASE["vocab_size"]
    arrays: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "config.json").write_text(json.dumps(given))
        if "architectures" not in given:
            kind = type(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)))
            given["architectures"] = [kind.__name__]
            (folder / "config.json").write_text(json.dumps(given))
        shapes = tensors_of(folder)
        if name == "gpt_oss":
            shapes = packed(shapes)
        save_file(weights(shapes), folder / "model.safetensors", metadata={"format": "pt"})
        kind = model_class(AutoConfig.from_pretrained(folder))
        model, info = kind.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    lengths = {"phi3": LONG_PROMPT_LENGTHS, "phi3_short": SHORT_PROMPT_LENGTHS}
    random = np.random.RandomState(0)
    with torch.inference_mode():
        for i, length in enumerate(lengths.get(name, PROMPT_LENGTHS)):
            ids = random.randint(3, vocab, length).tolist()
            for _ in range(NEW_TOKENS + 1):
                logits = model(torch.tensor([ids]), use_cache=False).logits[0]
                ids.append(int(logits[-1].argmax()))
            arrays[f"ids_{i}"] = np.array(ids[:-1], np.int32)
            arrays[f"logits_{i}"] = logits.numpy()
    arrays["config"] = np.array(json.dumps(given))
    arrays["tensors"] = np.array(json.dumps(shapes))
    out = Path(__file__).with_name("families")
    out.mkdir(exist_ok=True)
    np.savez_compressed(out / f"{name}.npz", **arrays)
    print(name, given["architectures"], {k: v.shape for k, v in arrays.items() if v.ndim == 2})


if __name__ == "__main__":
    for name in sys.argv[1:] or CONFIGS:
        run(name)
