"""A folder with a config.json and no weights, for plans: what its parameters would be."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from checkpoints.checkpoint import Checkpoint, Shapes
from checkpoints.safetensors_folder import read_config
from checkpoints.stored.quantization_config import quantization_config
from checkpoints.stored.quantized import QuantizedCheckpoint
from jaxserve.config import Quantization
from jaxserve.errors import ModelNotFoundError
from jaxserve.models.weights import Stored, Weight
from jaxserve.models.weights.scaled import Scaled


class ConfigOnly(Checkpoint):
    """Nothing can be read from it. Experts have the form of gpt-oss's if the config says MXFP4."""

    def __init__(self, path: Path) -> None:
        self.path, self.config = path, read_config(path)
        self._mxfp4 = quantization_config(path).get("quant_method") == "mxfp4"

    def shapes(self) -> Shapes:
        return {n: s for source in self.parameters().values() for n, s in source.tensors.items()}

    def form(self, path: tuple[Hashable, ...]) -> Stored | None:
        source = self.parameters()[path]
        if not (self._mxfp4 and source.experts and source.rows is not None):
            return None
        outputs = source.outputs().shape
        inputs = math.prod(source.shape[i] for i in source.inputs)
        shapes = {"codes": (*outputs, inputs // 2), "scales": (*outputs, inputs // 32)}
        arrays = {n: jax.ShapeDtypeStruct(shape, np.uint8) for n, shape in shapes.items()}
        return Weight(arrays, Scaled("e2m1", 32))

    def read(self, name: str) -> np.ndarray:
        raise ModelNotFoundError(f"{self.path}: there are no weights in it")

    @property
    def nbytes(self) -> int:
        return 0


def planned(path: Path, quantization: Quantization | None) -> Checkpoint:
    """A folder without weights, with parameters about as large as its quantization_config says.

    Args:
        quantization: of a checkpoint of floats, as EngineConfig has it.
    """
    checkpoint = ConfigOnly(path)
    kind = quantization or _kind(quantization_config(path))
    return checkpoint if kind is None else QuantizedCheckpoint(checkpoint, kind)


def _kind(config: Mapping[str, Any]) -> Quantization | None:
    """Ours that takes about as many bytes as a method of quantization_config."""
    groups = list((config.get("config_groups") or {}).values())
    weights = (groups[0].get("weights") if groups else None) or {}
    bits = weights.get("num_bits", config.get("bits", 4))
    few: Quantization = "int4" if bits == 4 else "int8"
    kinds: dict[str, Quantization] = {
        "fp8": "fp8",
        "awq": few,
        "gptq": few,
        "compressed-tensors": "fp8" if weights.get("type") == "float" else few,
    }
    return kinds.get(config.get("quant_method", ""))
