"""Adapters of random numbers in PEFT's format, for models in a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path,
    base: Path,
    seed: int,
    rank: int = 4,
    modules: Sequence[str] = ALL,
    size: float = 0.3,
    **config: Any,
) -> Path:
    """Writes an adapter on these modules of a folder's model.

    Args:
        config: more fields of adapter_config.json.
    """
    random = np.random.default_rng(seed)
    tensors = {}
    with safe_open(base / "model.safetensors", "numpy") as file:
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            module = name.removesuffix(".weight")
            if not module.endswith(tuple(modules)):
                continue
            outputs, inputs = file.get_slice(name).get_shape()
            for kind, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                values = random.standard_normal(shape, np.float32) * np.float32(size)
                tensors[f"base_model.model.{module}.lora_{kind}.weight"] = values
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def merge(adapter: Path, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weights with up @ down added, by the definition; the scale of write_adapter() is 1."""
    tensors = load_file(adapter / "adapter_model.safetensors")
    merged = dict(weights)
    for name, down in tensors.items():
        if ".lora_A." in name:
            up = tensors[name.replace("lora_A", "lora_B")]
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            whole = weights[f"{module}.weight"].astype(np.float64) + up.astype(np.float64) @ down
            merged[f"{module}.weight"] = whole.astype(np.float32)
    return merged
