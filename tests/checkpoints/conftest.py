"""Tiny checkpoints, written by the formats' own libraries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from checkpoints.weight_map import sources
from jaxserve.models.registry import config_from_hf

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
    "bos_token_id": 1,
}

Tensors = dict[str, np.ndarray]


@pytest.fixture
def tensors() -> Tensors:
    rng = np.random.default_rng(0)
    wanted = sources(config_from_hf(CONFIG)).values()
    shapes = {name: shape for source in wanted for name, shape in source.tensors.items()}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


@pytest.fixture
def write_folder(tmp_path: Path) -> Callable[..., Path]:
    def write(tensors: Tensors, shards: int = 1, **config: Any) -> Path:
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(CONFIG | config))
        if shards == 1:
            save_file(tensors, folder / "model.safetensors")
            return folder
        weight_map = {}
        for i in range(shards):
            file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
            part = {name: tensors[name] for name in list(tensors)[i::shards]}
            save_file(part, folder / file)
            weight_map |= dict.fromkeys(part, file)
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return folder

    return write


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Writes tensors under the file format's names, as they are given; in blocks of one kind, or of
    the kind that a function gives for a name."""

    def write(
        tensors: Tensors,
        quantisation: gguf.GGMLQuantizationType | Callable[[str], Any] | None = None,
        arch: str = "llama",
        parts: int = 1,
        **metadata: int | str | list[int],
    ) -> Path:
        path = tmp_path / "model.gguf"
        per_part = -(-len(tensors) // parts) if parts > 1 else 0  # 0: one file
        writer = gguf.GGUFWriter(path, arch, split_max_tensors=per_part)
        writer.add_block_count(2)
        writer.add_context_length(64)
        writer.add_embedding_length(32)
        writer.add_feed_forward_length(64)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(40)
        writer.add_token_list([f"t{i}" for i in range(40)])
        writer.add_eos_token_id(2)
        for key, value in metadata.items():
            kind = type(value)
            add = {int: writer.add_uint32, str: writer.add_string, list: writer.add_array}[kind]
            add(key.replace("__", "."), value)
        for name, values in tensors.items():
            chosen = quantisation(name) if callable(quantisation) else quantisation
            if chosen is None or values.ndim == 1:
                writer.add_tensor(name, values)
            else:
                writer.add_tensor(name, gguf.quantize(values, chosen), raw_dtype=chosen)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path if parts == 1 else tmp_path / f"model-00001-of-{parts:05}.gguf"

    return write
