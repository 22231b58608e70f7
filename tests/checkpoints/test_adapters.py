"""Damaged, hostile and unsupported adapters: each an error that names what is wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoints import open_checkpoint
from checkpoints.adapters import Adapter, read_adapter, targets
from jaxserve.errors import CheckpointError, ModelError, ModelNotFoundError, UnsupportedModelError
from tests.adapter_folders import write_adapter

Q0 = "base_model.model.model.layers.0.self_attn.q_proj"
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "own", tiny_llama, 1, 4)


def read(folder: Path, base: Path, max_rank: int = 16) -> Adapter:
    checkpoint = open_checkpoint(base)
    return read_adapter(folder, targets(checkpoint.config), checkpoint, max_rank)


def test_the_digest_is_of_the_whole_content(folder: Path, tiny_llama: Path, tmp_path: Path) -> None:
    first = read(folder, tiny_llama)
    assert len(first.digest) == 32
    assert first.rank == 4
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert read(copy, tiny_llama).digest == first.digest
    config = json.loads((copy / "adapter_config.json").read_text())
    (copy / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 5}))
    assert read(copy, tiny_llama).digest != first.digest


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"use_dora": True}, UnsupportedModelError, "use_dora is set: DoRA"),
        ({"modules_to_save": ["lm_head"]}, UnsupportedModelError, "modules_to_save is set"),
        ({"trainable_token_indices": [3]}, UnsupportedModelError, "trainable_token_indices"),
        ({"alora_invocation_tokens": [3]}, UnsupportedModelError, "activated LoRA"),
        ({"layer_replication": [[0, 1]]}, UnsupportedModelError, "layer_replication"),
        ({"lora_bias": True}, UnsupportedModelError, "lora_bias"),
        ({"bias": "all"}, UnsupportedModelError, "bias is 'all'"),
        ({"fan_in_fan_out": True}, UnsupportedModelError, "Conv1D"),
        ({"use_qalora": True}, UnsupportedModelError, "QALoRA"),
        ({"init_lora_weights": "pissa_niter_4"}, UnsupportedModelError, "changed base weights"),
        ({"velora_config": {"a": 1}}, UnsupportedModelError, "velora_config is set"),
        ({"of_tomorrow": 1}, UnsupportedModelError, "of_tomorrow is set, which isn't known"),
        ({"peft_type": "IA3"}, UnsupportedModelError, "peft_type is 'IA3'"),
        ({"peft_type": None}, UnsupportedModelError, "peft_type is None"),
        ({"r": 0}, CheckpointError, "r must be a whole number from 1"),
        ({"r": None}, CheckpointError, "r is missing"),
        ({"lora_alpha": "8"}, CheckpointError, "lora_alpha must be a number"),
        ({"lora_alpha": -1}, CheckpointError, "lora_alpha must be a number"),
        ({"lora_alpha": 1e308}, CheckpointError, "NaN or infinite values in matrix B"),
        ({"alpha_pattern": [1]}, CheckpointError, "alpha_pattern must be an object"),
        ({"alpha_pattern": {"q_proj": "x"}}, CheckpointError, "alpha_pattern['q_proj'] must be"),
        ({"alpha_pattern": {"(a+)+$": 1}}, UnsupportedModelError, "isn't a module's name"),
        ({"rank_pattern": {"(a|aa)*b": 1}}, UnsupportedModelError, "isn't a module's name"),
    ],
)
def test_settings(
    changes: dict[str, Any],
    error: type[ModelError],
    message: str,
    folder: Path,
    tiny_llama: Path,
) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(error, match=re.escape(message)):
        read(folder, tiny_llama)


Change = Callable[[dict[str, np.ndarray]], None]


def _renamed(old: str, new: str) -> Change:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[new] = tensors.pop(old)

    return change


def _replaced(name: str, value: Callable[[np.ndarray], np.ndarray]) -> Change:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[name] = np.ascontiguousarray(value(tensors.get(name, np.zeros(1, np.float32))))

    return change


def _nan(tensor: np.ndarray) -> np.ndarray:
    tensor = tensor.copy()
    tensor[0, 0] = np.nan
    return tensor


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t: t.clear(), CheckpointError, "there is no adapter in it"),
        (lambda t: t.pop(f"{Q0}.lora_A.weight"), CheckpointError, "has a matrix B alone"),
        (
            _replaced(f"{Q0}.lora_A.weight", lambda a: a[:, :-1]),
            CheckpointError,
            "model.layers.0.self_attn.q_proj has matrices of shapes [4, 47] and [64, 4] where the "
            "model asks for [4, 48] and [64, 4]",
        ),
        (_replaced(f"{Q0}.lora_B.weight", lambda b: b[:, :-1]), CheckpointError, "matrices of"),
        (_replaced(f"{Q0}.lora_B.weight", lambda b: b[0]), CheckpointError, "1 dimensions, not 2"),
        (_replaced(f"{Q0}.lora_B.weight", _nan), CheckpointError, "NaN or infinite values in"),
        (
            _replaced(f"{Q0}.lora_B.weight", lambda b: b.astype(np.float64)),
            UnsupportedModelError,
            "is stored as F64; supported: F32, F16, BF16",
        ),
        (
            _replaced(f"{Q0}.lora_magnitude_vector", lambda _: np.ones(3, np.float32)),
            UnsupportedModelError,
            "lora_magnitude_vector is not part of a LoRA",
        ),
        (
            _replaced(f"{Q0}.lora_B.bias", lambda _: np.ones(3, np.float32)),
            UnsupportedModelError,
            "lora_B.bias is not part of a LoRA",
        ),
        (
            _replaced("base_model.model.lm_head.weight", lambda _: np.ones((2, 2), np.float32)),
            UnsupportedModelError,
            "it has a whole lm_head that differs from the base model's",
        ),
        (
            lambda t: [t.update({k.replace(".0.", ".7."): v}) for k, v in list(t.items())],
            UnsupportedModelError,
            "model.layers.7.mlp.down_proj can't have an adapter here; modules that can: down_proj",
        ),
        (
            lambda t: [
                t.update({k.replace("q_proj", "router"): v})
                for k, v in list(t.items())
                if "q_proj" in k
            ],
            UnsupportedModelError,
            "self_attn.router can't have an adapter here",
        ),
        (
            _renamed(f"{Q0}.lora_A.weight", "lora_A"),
            UnsupportedModelError,
            "the tensor lora_A is not part",
        ),
        (
            _replaced(f"{Q0}.lora_A.default.weight", lambda _: np.ones((4, 48), np.float32)),
            CheckpointError,
            "has two matrices A",
        ),
    ],
)
def test_tensors(
    change: Change, error: type[ModelError], message: str, folder: Path, tiny_llama: Path
) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(error, match=re.escape(message)):
        read(folder, tiny_llama)


def test_ranks_above_the_servers(folder: Path, tiny_llama: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"has rank 4, and this server takes at most 3"):
        read(folder, tiny_llama, max_rank=3)


@pytest.mark.parametrize("keep", [0, 5, 8, 100, -1])
def test_truncated_weights(keep: int, folder: Path, tiny_llama: Path) -> None:
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        read(folder, tiny_llama)


def test_a_header_that_lies_about_its_length(folder: Path, tiny_llama: Path) -> None:
    file = folder / WEIGHTS
    data = file.read_bytes()
    for length in (2**63, 2**40, len(data) * 2):
        file.write_bytes(length.to_bytes(8, "little") + data[8:])
        with pytest.raises(CheckpointError, match="damaged or truncated"):
            read(folder, tiny_llama)


def test_files_that_are_too_large_are_not_read(folder: Path, tiny_llama: Path) -> None:
    with (folder / WEIGHTS).open("r+b") as file:
        os.truncate(file.fileno(), 2**36)  # a sparse file
    with pytest.raises(CheckpointError, match="which no adapter of this model needs"):
        read(folder, tiny_llama)
    config = folder / "adapter_config.json"
    config.write_text(config.read_text() + " " * 2**20)
    with pytest.raises(CheckpointError, match="which no adapter of this model needs"):
        read(folder, tiny_llama)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": ' * 5000, "\ud800", "nul\0"])
def test_a_config_that_is_no_json_object(text: str, folder: Path, tiny_llama: Path) -> None:
    data = text.encode("utf-8", "surrogatepass")
    (folder / "adapter_config.json").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"not valid JSON|not a JSON object"):
        read(folder, tiny_llama)


def test_what_is_no_adapter_folder(folder: Path, tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"there is no adapter_config\.json in it"):
        read(tmp_path / "nowhere", tiny_llama)
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    with pytest.raises(UnsupportedModelError, match="its weights are pickled"):
        read(folder, tiny_llama)
    os.mkfifo(folder / WEIGHTS)  # would block whoever opens it
    with pytest.raises(UnsupportedModelError, match="its weights are pickled"):
        read(folder, tiny_llama)
    (folder / "adapter_model.bin").unlink()
    with pytest.raises(ModelNotFoundError, match=r"there is no adapter_model\.safetensors in it"):
        read(folder, tiny_llama)
    with pytest.raises(ModelError):
        read(Path("a\0b"), tiny_llama)
