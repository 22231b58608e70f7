"""config.json to ModelConfig: what all families share. A family's own fields are its module's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from jaxserve.errors import UnsupportedModelError
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

HFConfig = Mapping[str, Any]

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def read_config(hf: HFConfig, **changes: Any) -> ModelConfig:
    """The fields that go by one name in every family.

    Args:
        changes: ModelConfig fields that the family reads in its own way. Without `layers`, all
            layers see everything and turn by `rope(hf)`.

    Raises:
        UnsupportedModelError: a field asks for something that isn't implemented, or is missing.
    """
    activation = hf.get("hidden_activation") or hf.get("hidden_act") or "silu"
    refuse(hf, "hidden activation", activation, _ACTIVATIONS)
    refuse(hf, "mlp_bias", bool(hf.get("mlp_bias", False)), (False,))
    eos = hf.get("eos_token_id")
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
        "rms_norm_eps": hf.get("rms_norm_eps", 1e-6),
        "activation": _ACTIVATIONS[activation],
        "attention_bias": bool(hf.get("attention_bias", False)),
        "tie_word_embeddings": bool(hf.get("tie_word_embeddings", False)),
        "bos_token_id": hf.get("bos_token_id"),
        "eos_token_ids": () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos),
    }
    if "layers" not in changes:
        fields["layers"] = layers(hf, lambda i: LayerConfig(rope(hf)))
    return ModelConfig(**fields | changes)


def require(hf: HFConfig, name: str) -> Any:
    """A field without a default."""
    if hf.get(name) is None:
        raise UnsupportedModelError(f"config.json has no {name!r}")
    return hf[name]


def refuse(hf: HFConfig, name: str, value: object, known: Any) -> None:
    """Raises unless a field's value is one of those that are implemented."""
    if value not in known:
        raise UnsupportedModelError(
            f"config.json has {name} = {value!r}; supported: {', '.join(map(str, known))}"
        )


def layers(hf: HFConfig, make: Callable[[int], LayerConfig]) -> tuple[LayerConfig, ...]:
    """make(i) for every layer."""
    return tuple(make(i) for i in range(require(hf, "num_hidden_layers")))


def layer_types(hf: HFConfig, default: Callable[[int], bool]) -> tuple[bool, ...]:
    """Whether each layer is a sliding-window one: `layer_types`, or default(i) in older files."""
    named = hf.get("layer_types")
    if named is None:
        return tuple(default(i) for i in range(require(hf, "num_hidden_layers")))
    for kind in named:
        refuse(hf, "a layer type", kind, ("full_attention", "sliding_attention"))
    return tuple(kind == "sliding_attention" for kind in named)


def rope(hf: HFConfig, theta: float = 10_000.0, layer_type: str | None = None) -> RopeConfig:
    """Rope from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).

    Args:
        theta: the family's default base.
        layer_type: which entry, where rope_parameters are given by layer type.
    """
    raw = dict(hf.get("rope_parameters") or hf.get("rope_scaling") or {})
    if layer_type is not None and layer_type in raw:
        raw = dict(raw[layer_type])
    return RopeConfig(
        theta=float(raw.get("rope_theta") or hf.get("rope_theta") or theta),
        rotated=float(raw.get("partial_rotary_factor") or hf.get("partial_rotary_factor") or 1.0),
        scaling=_scaling(hf, raw),
    )


def _scaling(hf: HFConfig, raw: Mapping[str, Any]) -> RopeScaling | None:
    kind = raw.get("rope_type", raw.get("type", "default"))
    refuse(hf, "rope scaling", kind, ("default", "linear", "llama3", "yarn", "longrope", "su"))
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(float(raw["factor"]))
    context = require(hf, "max_position_embeddings")
    original = (
        raw.get("original_max_position_embeddings")
        or hf.get("original_max_position_embeddings")
        or context
    )
    factor = float(raw.get("factor") or context / original)
    if kind == "llama3":
        return Llama3Scaling(
            factor, float(raw["low_freq_factor"]), float(raw["high_freq_factor"]), original
        )
    if kind == "yarn":
        return YarnScaling(
            factor,
            original,
            raw.get("attention_factor") or _yarn_attention(raw, factor),
            raw.get("beta_fast") or 32.0,
            raw.get("beta_slow") or 1.0,
            raw.get("truncate", True),
        )
    return LongRopeScaling(
        tuple(raw["short_factor"]),
        tuple(raw["long_factor"]),
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
