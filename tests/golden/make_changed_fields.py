"""Makes changed_fields/NAME.npz with transformers in float32, one for each entry of CHANGES:

    python tests/golden/make_changed_fields.py [NAME ...]

needs torch, transformers 5 and safetensors, and none of this project's code. The random models of
make_families.py, each again with one field of its config changed. Arrays: `ids` [T], a prompt;
`configs`, JSON of change -> config.json, the first one without a change; `tensors`, JSON of change
-> names and shapes; `logits` [changes, V] after the prompt, the shorter rows padded with zeros. A
change is named by its field, and by its value where a field is changed in several ways.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make_families import BASE, CONFIGS, tensors_of
from safetensors.numpy import save_file
from tiny_weights import make
from transformers import AutoConfig, AutoModelForCausalLM

LENGTH = 20
VOCAB = 72
# The least that a change must move the largest logit by, of its size.
LEAST = 2e-3

Changes = dict[str, Any]

SHARED: Changes = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 0.1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    "tie_word_embeddings": True,
}
DENSE = SHARED | {"hidden_act": "gelu_pytorch_tanh"}
WINDOW_FROM = {
    "sliding_window": 5,
    "use_sliding_window": False,
    "max_window_layers": 0,
    "layer_types": ["sliding_attention", "full_attention"],
}
WINDOWED = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
GEMMA = SHARED | {
    "hidden_activation": "silu",
    "head_dim": 8,
    "tie_word_embeddings": False,
    "attention_bias": True,
    "query_pre_attn_scalar": 4,
    "sliding_window": 5,
    "layer_types": ["full_attention"] * 2,
    "final_logit_softcapping": 3.0,
}
ROPES = {
    "full_attention": {"rope_type": "default", "rope_theta": 300.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
}
QUERY_SCALING = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.2,
}
MULTIPLIERS = {
    "embedding_multiplier": 1.5,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
}
FACTORS = [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": FACTORS}

# Phi-3's class takes the head size from these two alone, and LongRoPE has a factor a frequency.
TOGETHER = {
    ("phi3", "hidden_size"): {"num_attention_heads": 6},
    ("phi3", "num_attention_heads"): {"hidden_size": 32},
}

# The family in make_families.py; changes to its config before any; and one config a change.
CHANGES: dict[str, tuple[str, Changes, Changes]] = {
    "gemma2": ("gemma2", {}, GEMMA | {"attn_logit_softcapping": 2.0}),
    "gemma3": (
        "gemma3",
        {"num_hidden_layers": 2, "sliding_window_pattern": 2},
        GEMMA
        | {
            "rope_parameters": ROPES,
            "rope_local_base_freq": 30.0,
            "sliding_window_pattern": 1,
            "num_hidden_layers": 3,
        },
    ),
    "glm4_moe": (
        "glm4_moe",
        {"num_hidden_layers": 2},
        DENSE
        | {
            "attention_bias": False,
            "use_qk_norm": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 300.0,
                "partial_rotary_factor": 0.25,
            },
            "n_routed_experts": 16,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "n_shared_experts": 1,
            "first_k_dense_replace": 0,
            "norm_topk_prob": False,
            "n_group": 2,
            "topk_group": 3,
            "routed_scaling_factor": 1.0,
        },
    ),
    "granite": (
        "granite",
        {},
        DENSE
        | MULTIPLIERS
        | {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    ),
    "granite4_dense": (
        "granite4_dense",
        {"mamba_d_head": "auto"},
        {
            name: value
            for name, value in (DENSE | MULTIPLIERS).items()
            if name != "intermediate_size"
        }
        | {
            "tie_word_embeddings": False,
            "attention_bias": True,
            "shared_intermediate_size": 96,
            "position_embedding_type": None,
        },
    ),
    "gpt_oss": (
        "gpt_oss",
        {"intermediate_size": 48},
        SHARED
        | {
            "hidden_size": 48,
            "head_dim": 8,
            "attention_bias": False,
            "sliding_window": 5,
            "layer_types": ["full_attention"] * 2,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "swiglu_alpha": 1.0,
            "swiglu_limit": 0.5,
        },
    ),
    "llama": (
        "llama2",
        {"num_key_value_heads": 2, "head_dim": 16},
        DENSE | {"head_dim": 8, "attention_bias": True, "mlp_bias": True},
    ),
    "ministral3": (
        "ministral3",
        {},
        DENSE | {"head_dim": 8, "sliding_window": 5, "rope_parameters": QUERY_SCALING},
    ),
    "mistral": ("mistral", {}, DENSE | {"head_dim": 8, "sliding_window": 5}),
    "mixtral": (
        "mixtral",
        {},
        DENSE
        | {"head_dim": 8, "sliding_window": 5, "num_local_experts": 6, "num_experts_per_tok": 1},
    ),
    "olmo2": ("olmo2", {}, DENSE | {"attention_bias": True}),
    "olmo3": (
        "olmo3",
        {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
        DENSE
        | {
            "attention_bias": True,
            "sliding_window": 5,
            "layer_types": ["full_attention"] * 2,
            "rope_parameters": ROPES,
        },
    ),
    "phi3": (
        "llama2",
        {
            "model_type": "phi3",
            "hidden_size": 64,
            "head_dim": 16,
            "num_key_value_heads": 2,
            "original_max_position_embeddings": 16,
            "rope_scaling": LONGROPE,
            "max_position_embeddings": 64,
        },
        DENSE
        | {
            "hidden_size": 96,
            "sliding_window": 5,
            "original_max_position_embeddings": 8,
            "max_position_embeddings": 256,
        },
    ),
    "qwen2": ("qwen2", WINDOWED, DENSE | WINDOW_FROM | {"tie_word_embeddings": False}),
    "qwen2_moe": (
        "qwen2_moe",
        {"num_hidden_layers": 2, "mlp_only_layers": [1]},
        DENSE
        | WINDOW_FROM
        | {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 24,
            "norm_topk_prob": True,
            "layer_types": ["full_attention", "sliding_attention"],
            "mlp_only_layers": [0],
            "decoder_sparse_step": 2,
            "qkv_bias": False,
        },
    ),
    "qwen3": (
        "qwen3",
        WINDOWED,
        DENSE | WINDOW_FROM | {"head_dim": 8, "attention_bias": True},
    ),
    "qwen3_moe": (
        "qwen3_moe",
        {"use_sliding_window": True, "sliding_window": 8, "num_hidden_layers": 2},
        DENSE
        | {
            "attention_bias": True,
            "use_sliding_window": False,
            "sliding_window": 5,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "mlp_only_layers": [0],
            "decoder_sparse_step": 2,
        },
    ),
    "smollm3": (
        "smollm3",
        {"num_hidden_layers": 2},
        DENSE
        | {
            "tie_word_embeddings": False,
            "attention_bias": True,
            "mlp_bias": True,
            "use_sliding_window": False,
            "sliding_window": 5,
            "layer_types": ["sliding_attention"] * 2,
            "no_rope_layers": [0, 1],
            "no_rope_layer_interval": 1,
        },
    ),
}


def logits(config: dict[str, Any], ids: np.ndarray) -> tuple[dict[str, list[int]], np.ndarray]:
    """Names and shapes of a model's tensors, and its logits [V] after a prompt."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "config.json").write_text(json.dumps(config))
        shapes = tensors_of(folder)
        made = {name: make(name, tuple(shape)) for name, shape in shapes.items()}
        save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.inference_mode():
        return shapes, model(torch.from_numpy(ids)[None].long(), use_cache=False).logits[
            0, -1
        ].numpy()


def run(name: str) -> None:
    family, changes, fields = CHANGES[name]
    base = BASE | CONFIGS[family] | changes
    with tempfile.TemporaryDirectory() as temporary:
        (Path(temporary) / "config.json").write_text(json.dumps(base))
        kind = type(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(temporary)))
    base["architectures"] = [kind.__name__]
    configs = {"": base}
    for field, value in fields.items():
        given = {k: v for k, v in base.items() if not (field == "rope_parameters" and "rope" in k)}
        if field == "num_hidden_layers" and "layer_types" in given:
            given = given | {"layer_types": [*given["layer_types"], given["layer_types"][0]]}
        configs[field] = given | {field: value} | TOGETHER.get((name, field), {})
    ids = np.random.RandomState(1).randint(3, BASE["vocab_size"], LENGTH).astype(np.int32)
    rows, tensors, unmoved = [], {}, {}
    for change, config in configs.items():
        tensors[change], row = logits(config, ids)
        rows.append(np.pad(row, (0, VOCAB - len(row))))
        moved = np.abs(rows[-1] - rows[0]).max() / np.abs(rows[0]).max()
        if change and moved < LEAST:
            unmoved[change] = moved
    assert not unmoved, f"{name}: changes that don't change the logits: {unmoved}"
    out = Path(__file__).with_name("changed_fields")
    out.mkdir(exist_ok=True)
    np.savez_compressed(
        out / f"{name}.npz",
        ids=ids,
        configs=np.array(json.dumps(configs)),
        tensors=np.array(json.dumps(tensors)),
        logits=np.stack(rows),
    )
    print(name, len(rows), (out / f"{name}.npz").stat().st_size, flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or CHANGES:
        run(name)
