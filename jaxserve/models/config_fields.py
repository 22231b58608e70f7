"""How each family takes every field of its configuration class in transformers.

A field is honoured (a changed value changes the result as it does there), refused (unless it has a
value that is implemented), or without effect on inference. The test of this table has the fields of
transformers' classes, and for each honoured field logits that transformers computed with a changed
value (tests/golden/make_config_fields.py and make_changed_fields.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxserve.errors import UnsupportedModelError
from jaxserve.models.hf_config import ROPE_FIELDS

# Honoured by all families; a file has to have the sizes, and without ids none is special.
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "max_position_embeddings"),
)
_IDS = ("bos_token_id", "eos_token_id")

# Of training, of transformers' own code, or of other model types.
_WITHOUT_EFFECT = frozenset(
    (
        *("initializer_range", "attention_dropout", "resid_pdrop", "embd_pdrop", "pretraining_tp"),
        *("output_router_logits", "router_aux_loss_coef", "router_jitter_noise"),
        *("pad_token_id", "use_cache", "model_type", "architectures", "transformers_version"),
        *("dtype", "torch_dtype", "auto_map", "_name_or_path", "name_or_path", "_commit_hash"),
        *("attn_implementation", "_attn_implementation", "_attn_implementation_autoset"),
        *("cache_implementation", "output_attentions", "output_hidden_states", "output_scores"),
        *("return_dict", "return_dict_in_generate", "chunk_size_feed_forward", "problem_type"),
        *("id2label", "label2id", "num_labels", "unsloth_fixed", "unsloth_version"),
        # Settings of generation, which belong into generation_config.json.
        *("assistant_confidence_threshold", "assistant_lookbehind", "bad_words_ids"),
        *("begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping"),
        *("encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "epsilon_cutoff"),
        *("eta_cutoff", "exponential_decay_length_penalty", "forced_bos_token_id"),
        *("forced_eos_token_id", "length_penalty", "max_length", "min_length"),
        *("no_repeat_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule"),
        *("num_beam_groups", "num_beams", "num_return_sequences", "remove_invalid_values"),
        *("repetition_penalty", "suppress_tokens", "target_lookbehind", "temperature", "top_k"),
        *("top_p", "typical_p"),
    )
)
# Read by other parts: how weights are stored; and what older files have in place of a field.
_READ_ELSEWHERE = frozenset(
    ("quantization_config", "rope_theta", "rope_scaling", "partial_rotary_factor")
)
# `finetuned` is a remark, and `max_position_embeddings` repeats the config's.
_ROPE_WITHOUT_EFFECT = frozenset(("finetuned", "max_position_embeddings"))
_REFUSED: Mapping[str, tuple[object, ...]] = {
    "is_encoder_decoder": (False,),
    "per_layer_config": (),
}


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one family.

    Args:
        honoured: with the value of a field that a file leaves out.
        refused: with the values that are implemented, of a list the values of its entries.
        without_effect: beside those of all families.
        older: honoured too; files of older versions have them.
    """

    honoured: Mapping[str, object]
    refused: Mapping[str, tuple[object, ...]]
    without_effect: frozenset[str]
    older: frozenset[str]

    def check(self, hf: Mapping[str, Any]) -> None:
        """Raises:
        UnsupportedModelError: a field asks for what isn't implemented.
        """
        for name, known in {**_REFUSED, **self.refused}.items():
            value = hf.get(name)
            values = value if isinstance(value, list) else () if value is None else (value,)
            if not all(one in known for one in values):
                words = ", ".join(map(str, known)) or "leave the field out"
                raise UnsupportedModelError(f"{name} is {value!r}; supported: {words}")

    def unknown(self, hf: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of a file's fields that have no mark."""
        unknown = hf.keys() - self.marks().keys() - self.older - _READ_ELSEWHERE
        nested = {
            f"{name}.{key}"
            for name in ("rope_parameters", "rope_scaling")
            for key in _keys(hf.get(name) or {}) - ROPE_FIELDS.keys() - _ROPE_WITHOUT_EFFECT
        }
        return tuple(sorted(unknown | nested))

    def marks(self) -> dict[str, str]:
        """The mark of each field: honoured, refused or without effect."""
        return {
            **dict.fromkeys((*_SIZES, *_IDS, *self.honoured), "honoured"),
            **dict.fromkeys({**_REFUSED, **self.refused}, "refused"),
            **dict.fromkeys(_WITHOUT_EFFECT | self.without_effect, "without effect"),
        }


def _keys(rope: Mapping[str, Any]) -> set[str]:
    """Of a rope, or of the ropes of several layer types."""
    ropes = [value for value in rope.values() if isinstance(value, Mapping)] or [rope]
    return {key for one in ropes for key in one}


def _family(
    *parts: Mapping[str, object],
    refused: Mapping[str, tuple[object, ...]] | None = None,
    without_effect: tuple[str, ...] = (),
    older: tuple[str, ...] = (),
) -> Fields:
    honoured = {name: value for part in parts for name, value in part.items()}
    return Fields(honoured, refused or {}, frozenset(without_effect), frozenset(older))


_SHARED: Mapping[str, object] = {
    "num_key_value_heads": None,  # as many as attention heads
    "rms_norm_eps": 1e-6,
    "rope_parameters": None,
    "tie_word_embeddings": False,
}
_DENSE: Mapping[str, object] = {**_SHARED, "hidden_act": "silu"}
_GEMMA: Mapping[str, object] = {
    **_SHARED,
    "hidden_activation": "gelu_pytorch_tanh",
    "num_key_value_heads": 4,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
}
_WINDOW_FROM: Mapping[str, object] = {
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
_QWEN_EXPERTS: Mapping[str, object] = {
    "norm_topk_prob": False,
    "mlp_only_layers": None,
    "decoder_sparse_step": 1,
}
_GROUPS: Mapping[str, object] = {
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
}
_MULTIPLIERS: Mapping[str, object] = {
    "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
}

FAMILY_FIELDS: Mapping[str, Fields] = {
    "Gemma2ForCausalLM": _family(
        _GEMMA,
        {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        refused={"use_bidirectional_attention": (False,)},
        without_effect=("hidden_act",),
    ),
    "Gemma3ForCausalLM": _family(
        _GEMMA,
        {"final_logit_softcapping": None},
        # transformers reads attn_logit_softcapping, and doesn't use it.
        refused={"use_bidirectional_attention": (False,), "attn_logit_softcapping": ()},
        without_effect=("hidden_act",),
        older=("rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"),
    ),
    "Glm4MoeForCausalLM": _family(
        _DENSE,
        {
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "attention_bias": False,
            "use_qk_norm": False,
            "n_routed_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 1408,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            **_GROUPS,
        },
        # The layers that guess further tokens aren't loaded.
        without_effect=("num_mtp_layers",),
        older=("head_dim", "num_nextn_predict_layers"),
    ),
    "GptOssForCausalLM": _family(
        _SHARED,
        {
            "num_key_value_heads": 8,
            "head_dim": 64,
            "rms_norm_eps": 1e-5,
            "attention_bias": True,
            "sliding_window": 128,
            "layer_types": None,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
        },
        # The published files repeat num_experts_per_tok and rope's original context by these names.
        without_effect=("hidden_act", "experts_per_token", "initial_context_length"),
    ),
    "GraniteForCausalLM": _family(
        _DENSE, _MULTIPLIERS, {"attention_bias": False, "mlp_bias": False}, older=("head_dim",)
    ),
    "GraniteMoeHybridForCausalLM": _family(
        _DENSE,
        _MULTIPLIERS,
        {
            "attention_bias": False,
            "shared_intermediate_size": 1024,
            "position_embedding_type": None,
        },
        # The dense models: experts and Mamba layers aren't implemented. A file has to have both.
        refused={"num_local_experts": (0,), "layer_types": ("attention", "full_attention")},
        without_effect=(
            *("num_experts_per_tok", "mamba_n_heads", "mamba_n_groups", "mamba_d_state"),
            *("mamba_d_head", "mamba_d_conv", "mamba_expand", "mamba_chunk_size"),
            *("mamba_conv_bias", "mamba_proj_bias", "time_step_limit", "intermediate_size"),
        ),
        older=("head_dim",),
    ),
    "LlamaForCausalLM": _family(
        _DENSE, {"head_dim": None, "attention_bias": False, "mlp_bias": False}
    ),
    "Ministral3ForCausalLM": _family(
        _DENSE,
        {
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "sliding_window": None,
        },
    ),
    "MistralForCausalLM": _family(
        _DENSE, {"num_key_value_heads": 8, "head_dim": None, "sliding_window": 4096}
    ),
    "MixtralForCausalLM": _family(
        _DENSE,
        {
            "num_key_value_heads": 8,
            "head_dim": None,
            "rms_norm_eps": 1e-5,
            "sliding_window": None,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    ),
    "Olmo2ForCausalLM": _family(
        _DENSE, {"rms_norm_eps": 1e-5, "attention_bias": False}, older=("head_dim",)
    ),
    "Olmo3ForCausalLM": _family(
        _DENSE,
        {
            "rms_norm_eps": 1e-5,
            "attention_bias": False,
            "sliding_window": 4096,
            "layer_types": None,
        },
        older=("head_dim",),
    ),
    "Phi3ForCausalLM": _family(
        _DENSE,
        {"rms_norm_eps": 1e-5, "sliding_window": None, "original_max_position_embeddings": 4096},
        older=("head_dim",),
        without_effect=("attention_bias",),
    ),
    "Qwen2ForCausalLM": _family(
        _DENSE, {"num_key_value_heads": 32}, _WINDOW_FROM, older=("head_dim",)
    ),
    "Qwen2MoeForCausalLM": _family(
        _DENSE,
        _WINDOW_FROM,
        _QWEN_EXPERTS,
        {
            "num_key_value_heads": 16,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "qkv_bias": True,
        },
        older=("head_dim",),
    ),
    "Qwen3ForCausalLM": _family(
        _DENSE,
        {"num_key_value_heads": 32, "head_dim": 128, "attention_bias": False},
        _WINDOW_FROM,
    ),
    "Qwen3MoeForCausalLM": _family(
        _DENSE,
        {
            "num_key_value_heads": 4,
            "attention_bias": False,
            "use_sliding_window": False,
            "sliding_window": 4096,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
        _QWEN_EXPERTS,
        older=("head_dim",),
        without_effect=("max_window_layers",),  # all layers have the window
    ),
    "SmolLM3ForCausalLM": _family(
        _DENSE,
        {
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "use_sliding_window": False,
            "sliding_window": None,
            "layer_types": None,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
        },
        older=("head_dim",),
    ),
}
