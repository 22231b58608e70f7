"""Hugging Face folders: config.json and safetensors, whole or sharded, by memory map."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from checkpoints.checkpoint import Checkpoint, Shapes, check_shapes
from checkpoints.generation_config import read_eos_token_ids
from checkpoints.json_file import naming, read_json
from checkpoints.stored.assemble import StoredTensor, widened_tensor
from checkpoints.stored.kv_scales import KV_SCALES, one_a_head
from checkpoints.stored.quantization_config import quantization_config, replacements
from checkpoints.stored.raw import TYPES, RawTensor, Replacement
from jaxserve.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from jaxserve.models.config import ModelConfig
from jaxserve.models.fields import OBJECT
from jaxserve.models.registry import config_from_hf
from jaxserve.models.wrappers import text_name

_FLOATS = ("F32", "F16", "BF16")
_UNKNOWN_TO_NUMPY = ("F8_E4M3", "F8_E8M0")  # as the safetensors package reads them
_HEAD = "lm_head.weight"
# A model that was saved without its head (an embedding model, for example) has no "model." before
# its tensors' names.
_FLAT = "embed_tokens.weight"


class SafetensorsCheckpoint(Checkpoint):
    """A folder in Hugging Face's layout; tensors are read in the type they are stored in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = read_config(path)
        layers, drafts = self.config.num_hidden_layers, self.config.draft_layers
        self._drafts = tuple(f"model.layers.{layers + i}." for i in range(drafts))
        self._raw: dict[str, RawTensor] = {}
        for file in _weight_files(path):
            self._add(file)
        if _FLAT in self._raw:
            self._raw = {n if n == _HEAD else "model." + n: t for n, t in self._raw.items()}
        if self.config.kv_scales:
            heads = self.config.num_key_value_heads
            scales = [name for name in self._raw if name.endswith(KV_SCALES)]
            self._raw |= {name: one_a_head(self._raw[name], heads) for name in scales}
        self._nbytes = sum(
            math.prod(t.shape) * np.dtype(TYPES[t.dtype]).itemsize for t in self._raw.values()
        )
        self._stored: dict[str, Replacement] = {}
        with naming(path):
            for found in replacements(quantization_config(path), self._raw):
                self._stored[found.name] = found
        used = frozenset().union(*(found.used for found in self._stored.values()))
        self._raw = {name: tensor for name, tensor in self._raw.items() if name not in used}
        for name, tensor in self._raw.items():
            if tensor.dtype not in _FLOATS:
                raise UnsupportedModelError(
                    f"{path}: the tensor {name} is stored as {tensor.dtype}, and no "
                    f"quantization_config says how; supported are {', '.join(_FLOATS)}"
                )
        check_shapes(path, self.shapes(), self.config)

    def shapes(self) -> Shapes:
        shapes = {name: tensor.shape for name, tensor in self._raw.items()}
        return shapes | {name: found.shape for name, found in self._stored.items()}

    def read(self, name: str) -> np.ndarray:
        if (found := self._stored.get(name)) is not None:
            return widened_tensor(found.stored.read(), found.shape)
        if name not in self._raw:
            raise CheckpointError(f"{self.path}: there is no tensor {name}")
        return self._raw[name].read()

    def tensor_type(self, name: str) -> np.dtype:
        raw = self._raw.get(name)
        return super().tensor_type(name) if raw is None else np.dtype(TYPES[raw.dtype])

    def stored(self, name: str) -> StoredTensor | None:
        found = self._stored.get(name)
        return None if found is None else found.stored

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
        for stored_name in opened.keys():  # noqa: SIM118 (not a mapping)
            name = text_name(stored_name)
            if name is None or self._is_ignored(name):
                continue
            if name in self._raw:
                raise CheckpointError(f"{file}: the tensor {name} is in another file too")
            tensor = opened.get_slice(stored_name)
            read: Callable[[], np.ndarray] = partial(opened.get_tensor, stored_name)
            shape, dtype = tuple(tensor.get_shape()), tensor.get_dtype()
            if dtype not in TYPES:
                raise UnsupportedModelError(
                    f"{file}: the tensor {name} is stored as {dtype}; supported: {', '.join(TYPES)}"
                )
            if dtype in _UNKNOWN_TO_NUMPY:
                read = partial(_read_bytes, file, stored_name)
            self._raw[name] = RawTensor(shape, dtype, read)

    def _is_ignored(self, name: str) -> bool:
        """Whether it is ignored, as by transformers: old files contain rope's buffers, some a copy
        of a tied output head, and some layers after the last that guess further tokens."""
        tied_head = name == _HEAD and self.config.tie_word_embeddings
        return tied_head or name.endswith("rotary_emb.inv_freq") or name.startswith(self._drafts)


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


def _read_bytes(file: Path, name: str) -> np.ndarray:
    """A tensor of one of the types in _UNKNOWN_TO_NUMPY."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        entry = json.loads(opened.read(length))[name]
    begin, end = entry["data_offsets"]
    data = np.memmap(file, np.uint8, "r", 8 + length + begin, (end - begin,))
    return data.view(TYPES[entry["dtype"]]).reshape(entry["shape"])
