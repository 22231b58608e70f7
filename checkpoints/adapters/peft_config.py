"""PEFT's adapter_config.json: what it scales an adapter by, and what of it isn't implemented."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checkpoints.json_file import parse_json
from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.fields import FLAG, OBJECT, TEXT, check, number, whole

NAME = "adapter_config.json"
MAX_BYTES = 2**20

# Fields that change nothing in what the weights say, or are read here.
_KNOWN = frozenset(
    (
        *("alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config"),
        *("ensure_weight_tying", "eva_config", "exclude_modules", "fan_in_fan_out"),
        *("inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform"),
        *("loftq_config", "lora_alpha", "lora_dropout", "lora_ga_config", "megatron_config"),
        *("megatron_core", "peft_type", "peft_version", "qalora_group_size", "r"),
        *("rank_pattern", "revision", "runtime_config", "target_modules", "target_parameters"),
        *("task_type", "use_rslora"),
    )
)
# Adapters of these begin from other base weights than the published ones.
_OTHER_BASES = ("pissa", "olora", "corda", "lora_ga")
_FIELDS = {
    "peft_type": TEXT,
    "r": whole(1, 2**16),
    "lora_alpha": number(0),
    "use_rslora": FLAG,
    "fan_in_fan_out": FLAG,
    "rank_pattern": OBJECT,
    "alpha_pattern": OBJECT,
    "bias": TEXT,
}
# A module's name, or the end or beginning of one: no pattern that could take long to match.
_PATTERN = re.compile(r"\^?[\w.\\-]+\$?")


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """What scales an adapter.

    Args:
        alpha: of modules that no pattern names.
        alphas: a pattern of modules' names to their alpha.
        rank_stabilized: alpha is divided by the root of the rank (Kalajdzievski 2023), not by it.
    """

    alpha: float
    alphas: Mapping[str, float]
    rank_stabilized: bool

    def scale(self, module: str, rank: int) -> float:
        """What up @ down is multiplied by.

        Args:
            module: its name in the model.
        """
        found = (
            alpha
            for pattern, alpha in self.alphas.items()
            if re.match(rf"(.*\.)?({pattern})$", module)
        )
        return next(found, self.alpha) / (math.sqrt(rank) if self.rank_stabilized else rank)


def read_peft_config(text: bytes) -> PeftConfig:
    """Reads the contents of an adapter_config.json.

    Raises:
        CheckpointError: it isn't JSON, or a field has an impossible value.
        UnsupportedModelError: it asks for something that isn't implemented, by name.
    """
    given = parse_json(text)
    check(given, _FIELDS)
    if given.get("peft_type") != "LORA":
        raise UnsupportedModelError(
            f"peft_type is {given.get('peft_type')!r}; only LORA is supported"
        )
    _refuse(given)
    for name in ("r", "lora_alpha"):
        if given.get(name) is None:
            raise CheckpointError(f"{name} is missing")
    alphas = given.get("alpha_pattern") or {}
    for name in ("alpha_pattern", "rank_pattern"):
        for pattern, value in (given.get(name) or {}).items():
            check({f"{name}[{pattern[:80]!r}]": value}, {f"{name}[{pattern[:80]!r}]": number(0)})
            if not _PATTERN.fullmatch(pattern):
                raise UnsupportedModelError(
                    f"{name} has {pattern[:80]!r}, which isn't a module's name or the end of one"
                )
    return PeftConfig(given["lora_alpha"], alphas, bool(given.get("use_rslora")))


def _refuse(given: Mapping[str, Any]) -> None:
    for name, value in (
        ("use_dora", "DoRA"),
        ("modules_to_save", "whole modules beside the adapter"),
        ("trainable_token_indices", "trained rows of the embedding"),
        ("alora_invocation_tokens", "activated LoRA"),
        ("layer_replication", "replicated layers"),
        ("lora_bias", "biases of adapters"),
        ("use_qalora", "QALoRA"),
    ):
        if given.get(name):
            raise UnsupportedModelError(f"{name} is set: {value} can't be served")
    if given.get("bias") not in (None, "none"):
        raise UnsupportedModelError(f"bias is {given['bias']!r}: trained biases can't be served")
    if given.get("fan_in_fan_out"):
        raise UnsupportedModelError("fan_in_fan_out is set: no supported model has Conv1D layers")
    begun = given.get("init_lora_weights")
    if isinstance(begun, str) and begun.startswith(_OTHER_BASES):
        raise UnsupportedModelError(
            f"init_lora_weights is {begun!r}: the adapter belongs to changed base weights; convert "
            "it to a plain LoRA with PEFT (path_initial_model_for_weight_conversion)"
        )
    unknown = sorted(name for name in given.keys() - _KNOWN if given[name])
    if unknown:
        raise UnsupportedModelError(f"{unknown[0]} is set, which isn't known")
