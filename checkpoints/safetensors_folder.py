"""Hugging Face folders: config.json and safetensors, whole or sharded, by memory map."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from checkpoints.checkpoint import Checkpoint, Shapes, check_shapes
from checkpoints.generation_config import read_eos_token_ids
from checkpoints.json_file import naming, read_json
from jaxserve.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from jaxserve.models.config import ModelConfig
from jaxserve.models.fields import OBJECT
from jaxserve.models.registry import config_from_hf

_ITEM_SIZES = {"F32": 4, "F16": 2, "BF16": 2}
_HEAD = "lm_head.weight"
# A model that was saved without its head (an embedding model, for example) has no "model." before
# its tensors' names.
_FLAT = "embed_tokens.weight"
_PACKED = ("_proj_blocks", "_proj_scales")  # MXFP4: bytes


class SafetensorsCheckpoint(Checkpoint):
    """A folder in Hugging Face's layout; tensors are read in the type they are stored in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = read_config(path)
        self._files: dict[str, Any] = {}
        self._shapes: Shapes = {}
        self._nbytes = 0
        for file in _weight_files(path):
            self._add(file)
        self._prefix = "" if _FLAT not in self._shapes else "model."
        if self._prefix:
            self._shapes = {
                name if name == _HEAD else self._prefix + name: shape
                for name, shape in self._shapes.items()
            }
        self.packed = any(name.endswith("_proj_blocks") for name in self._shapes)
        check_shapes(path, self._shapes, self.config, self.packed)

    def shapes(self) -> Shapes:
        return dict(self._shapes)

    def read(self, name: str) -> np.ndarray:
        stored = name.removeprefix(self._prefix)
        if stored not in self._files:
            raise CheckpointError(f"{self.path}: there is no tensor {name}")
        return self._files[stored].get_tensor(stored)

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def _add(self, file: Path) -> None:
        try:
            opened: Any = safe_open(file, framework="numpy")
        except FileNotFoundError:
            raise CheckpointError(f"{file}: missing, though the index names it") from None
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: damaged or truncated ({error})") from None
        for name in opened.keys():  # noqa: SIM118 (not a mapping)
            if self._is_ignored(name):
                continue
            if name in self._files:
                raise CheckpointError(f"{file}: the tensor {name} is in another file too")
            tensor = opened.get_slice(name)
            shape, dtype = tuple(tensor.get_shape()), tensor.get_dtype()
            bytes_allowed = dtype == "U8" and name.endswith(_PACKED)
            if dtype not in _ITEM_SIZES and not bytes_allowed:
                raise UnsupportedModelError(
                    f"{file}: the tensor {name} is stored as {dtype}; "
                    f"supported: {', '.join(_ITEM_SIZES)}"
                )
            self._files[name] = opened
            self._shapes[name] = shape
            self._nbytes += math.prod(shape) * _ITEM_SIZES.get(dtype, 1)

    def _is_ignored(self, name: str) -> bool:
        """Whether it is ignored, as by transformers: old files contain rope's buffers, and some a
        copy of a tied output head."""
        tied_head = name == _HEAD and self.config.tie_word_embeddings
        return tied_head or name.endswith("rotary_emb.inv_freq")


def read_config(path: Path) -> ModelConfig:
    """config.json, with the EOS ids of generation_config.json added."""
    hf = read_json(path / "config.json")
    with naming(path / "config.json"):
        config = config_from_hf(hf)
    eos = (*config.eos_token_ids, *read_eos_token_ids(path))
    return replace(config, eos_token_ids=tuple(dict.fromkeys(eos)))


def _weight_files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json(index, {"weight_map": OBJECT}).get("weight_map")
        if not weight_map:
            raise CheckpointError(f"{index}: it has no weight_map")
        for tensor, name in weight_map.items():
            if not isinstance(name, str) or Path(name).name != name:
                raise CheckpointError(
                    f"{index}: weight_map must name a file of the folder for {tensor}; it was "
                    f"{str(name)[:80]!r}"
                )
        return [path / name for name in sorted(set(weight_map.values()))]
    single = path / "model.safetensors"
    if not single.exists():
        raise ModelNotFoundError(f"{path}: it has no model.safetensors and no index of shards")
    return [single]
