"""Reads config.json into a ModelConfig: the fields that all families share. Each family's module
reads its own fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.config import (
    Activation,
    LayerConfig,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ModelConfig,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)
from jaxserve.models.fields import (
    FLAG,
    OBJECT,
    TEXT,
    TOKEN_IDS,
    Kind,
    check,
    list_of,
    number,
    token_ids,
    whole,
)

HFConfig = Mapping[str, Any]

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
}

# The bounds are far beyond any model. A larger value is damage, and must be refused before a loop
# of that length begins.
_SIZE = whole(1, 2**24)
_POSITIVE = number(0, above=True)
FIELDS: dict[str, Kind] = {
    "architectures": list_of(TEXT),
    **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size"), _SIZE),
    **dict.fromkeys(("head_dim", "moe_intermediate_size"), _SIZE),
    "num_hidden_layers": whole(1, 1000),
    "quantization_config": OBJECT,
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), whole(1, 2**16)),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_experts_per_tok"), whole(1, 2**16)),
    "num_local_experts": whole(0, 2**16),
    **dict.fromkeys(("n_group", "topk_group"), whole(1, 2**16)),
    "n_shared_experts": whole(0, 2**16),
    **dict.fromkeys(("shared_expert_intermediate_size", "shared_intermediate_size"), _SIZE),
    **dict.fromkeys(("num_mtp_layers", "num_nextn_predict_layers"), whole(0, 1000)),
    "first_k_dense_replace": whole(),
    **dict.fromkeys(("attention_multiplier", "embedding_multiplier"), _POSITIVE),
    **dict.fromkeys(("residual_multiplier", "logits_scaling"), _POSITIVE),
    "routed_scaling_factor": _POSITIVE,
    "position_embedding_type": TEXT,
    **dict.fromkeys(("qkv_bias", "use_qk_norm"), FLAG),
    **dict.fromkeys(("max_position_embeddings", "original_max_position_embeddings"), whole(2)),
    **dict.fromkeys(("sliding_window", "sliding_window_pattern"), whole(1)),
    **dict.fromkeys(("_sliding_window_pattern", "no_rope_layer_interval"), whole(1)),
    "decoder_sparse_step": whole(1),
    "max_window_layers": whole(),
    "rms_norm_eps": number(0),
    **dict.fromkeys(("rope_theta", "rope_local_base_freq", "partial_rotary_factor"), _POSITIVE),
    **dict.fromkeys(("query_pre_attn_scalar", "attn_logit_softcapping"), _POSITIVE),
    **dict.fromkeys(("final_logit_softcapping", "swiglu_alpha", "swiglu_limit"), _POSITIVE),
    **dict.fromkeys(("hidden_act", "hidden_activation"), TEXT),
    **dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings"), FLAG),
    **dict.fromkeys(("use_sliding_window", "norm_topk_prob"), FLAG),
    "layer_types": list_of(TEXT),
    **dict.fromkeys(("no_rope_layers", "mlp_only_layers"), list_of(whole())),
    **dict.fromkeys(("rope_scaling", "rope_parameters"), OBJECT),
    "bos_token_id": whole(),
    "eos_token_id": TOKEN_IDS,
}
ROPE_FIELDS: dict[str, Kind] = {
    **dict.fromkeys(("rope_type", "type"), TEXT),
    **dict.fromkeys(("rope_theta", "partial_rotary_factor", "factor"), _POSITIVE),
    **dict.fromkeys(("low_freq_factor", "high_freq_factor", "attention_factor"), _POSITIVE),
    **dict.fromkeys(("beta_fast", "beta_slow"), _POSITIVE),
    **dict.fromkeys(("mscale", "mscale_all_dim"), number(0)),
    **dict.fromkeys(("short_factor", "long_factor"), list_of(_POSITIVE)),
    "original_max_position_embeddings": whole(2),
    "truncate": FLAG,
    "llama_4_scaling_beta": number(0),
}


def read_config(hf: HFConfig, **changes: Any) -> ModelConfig:
    """Reads the fields that have the same name in every family.

    Args:
        changes: ModelConfig fields that the family reads in its own way. Without `layers`, all
            layers have full attention and are rotated by `rope(hf)`.

    Raises:
        UnsupportedModelError: a field asks for something that isn't implemented, or is missing.
        CheckpointError: a field has an impossible value.
    """
    activation = hf.get("hidden_activation") or hf.get("hidden_act") or "silu"
    refuse(hf, "hidden activation", activation, _ACTIVATIONS)
    heads = require(hf, "num_attention_heads")
    fields: dict[str, Any] = {
        "architecture": (hf.get("architectures") or ["unknown"])[0],
        "vocab_size": require(hf, "vocab_size"),
        "hidden_size": require(hf, "hidden_size"),
        "intermediate_size": require(hf, "intermediate_size"),
        "num_attention_heads": heads,
        "num_key_value_heads": hf.get("num_key_value_heads") or heads,
        "head_dim": hf.get("head_dim") or require(hf, "hidden_size") // heads,
        "max_position_embeddings": require(hf, "max_position_embeddings"),
        "rms_norm_eps": require(hf, "rms_norm_eps"),
        "activation": _ACTIVATIONS[activation],
        "attention_bias": bool(hf.get("attention_bias", False)),
        "mlp_bias": bool(hf.get("mlp_bias", False)),
        "kv_scales": bool((hf.get("quantization_config") or {}).get("kv_cache_scheme")),
        "tie_word_embeddings": bool(hf.get("tie_word_embeddings", False)),
        "bos_token_id": hf.get("bos_token_id"),
        "eos_token_ids": token_ids(hf.get("eos_token_id")),
    }
    if "layers" not in changes:
        fields["layers"] = layers(hf, lambda i: LayerConfig(rope(hf)))
    return ModelConfig(**fields | changes)


def require(hf: HFConfig, name: str) -> Any:
    """A field without a default."""
    if hf.get(name) is None:
        raise UnsupportedModelError(f"{name} is missing")
    return hf[name]


def refuse(hf: HFConfig, name: str, value: object, known: Any) -> None:
    """Raises unless a field's value is one of those that are implemented."""
    if value not in known:
        raise UnsupportedModelError(f"{name} is {value!r}; supported: {', '.join(map(str, known))}")


def layers(hf: HFConfig, make: Callable[[int], LayerConfig]) -> tuple[LayerConfig, ...]:
    """make(i) for every layer i."""
    return tuple(make(i) for i in range(require(hf, "num_hidden_layers")))


def layer_types(hf: HFConfig, default: Callable[[int], bool]) -> tuple[bool, ...]:
    """Whether each layer is a sliding-window one: `layer_types`, or default(i) in older files."""
    named = hf.get("layer_types")
    if named is None:
        return tuple(default(i) for i in range(require(hf, "num_hidden_layers")))
    if len(named) != require(hf, "num_hidden_layers"):
        raise CheckpointError(f"layer_types has {len(named)} entries, not one a layer")
    for kind in named:
        refuse(hf, "a layer type", kind, ("full_attention", "sliding_attention"))
    return tuple(kind == "sliding_attention" for kind in named)


def rope(
    hf: HFConfig,
    theta: float = 10_000.0,
    layer_type: str | None = None,
    *,
    scales_queries: bool = False,
) -> RopeConfig:
    """Rope from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).

    Args:
        theta: the family's default base.
        layer_type: which entry, where rope_parameters are given by layer type.
        scales_queries: whether the family reads `llama_4_scaling_beta`.
    """
    raw = dict(hf.get("rope_parameters") or hf.get("rope_scaling") or {})
    if layer_type is not None and layer_type in raw:
        check(raw, {layer_type: OBJECT})
        raw = dict(raw[layer_type] or {})
    check(raw, ROPE_FIELDS)
    if not scales_queries:
        refuse(hf, "llama_4_scaling_beta", raw.get("llama_4_scaling_beta") or 0, (0,))
    return RopeConfig(
        theta=float(raw.get("rope_theta") or hf.get("rope_theta") or theta),
        rotated=float(raw.get("partial_rotary_factor") or hf.get("partial_rotary_factor") or 1.0),
        scaling=_scaling(hf, raw),
    )


def _scaling(hf: HFConfig, raw: Mapping[str, Any]) -> RopeScaling | None:
    kind = raw.get("rope_type") or raw.get("type") or "default"
    refuse(hf, "rope scaling", kind, ("default", "linear", "llama3", "yarn", "longrope", "su"))
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(float(require(raw, "factor")))
    context = require(hf, "max_position_embeddings")
    original = (
        raw.get("original_max_position_embeddings")
        or hf.get("original_max_position_embeddings")
        or context
    )
    factor = float(raw.get("factor") or context / original)
    if kind == "llama3":
        return Llama3Scaling(
            factor,
            float(require(raw, "low_freq_factor")),
            float(require(raw, "high_freq_factor")),
            original,
        )
    if kind == "yarn":
        return YarnScaling(
            factor,
            original,
            raw.get("attention_factor") or _yarn_attention(raw, factor),
            raw.get("beta_fast") or 32.0,
            raw.get("beta_slow") or 1.0,
            raw.get("truncate") is not False,
        )
    return LongRopeScaling(
        tuple(require(raw, "short_factor")),
        tuple(require(raw, "long_factor")),
        original,
        raw.get("attention_factor")
        or math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(original)),
    )


def _yarn_attention(raw: Mapping[str, Any], factor: float) -> float:
    def mscale(m: float) -> float:
        return 0.1 * m * math.log(factor) + 1.0 if factor > 1 else 1.0

    if raw.get("mscale") and raw.get("mscale_all_dim"):
        return mscale(raw["mscale"]) / mscale(raw["mscale_all_dim"])
    return mscale(1.0)
