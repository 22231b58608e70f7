from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from checkpoints import open_checkpoint
from jaxserve.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError

Tensors = dict[str, np.ndarray]
Write = Callable[..., Path]
Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize("shards", [1, 3])
def test_every_tensor_is_read_as_it_was_saved(
    tensors: Tensors, write_folder: Write, shards: int
) -> None:
    checkpoint = open_checkpoint(write_folder(tensors, shards))
    assert checkpoint.shapes() == {name: value.shape for name, value in tensors.items()}
    assert checkpoint.nbytes == sum(value.nbytes for value in tensors.values())
    for name, value in tensors.items():
        np.testing.assert_array_equal(checkpoint.read(name), value)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_the_stored_type_is_kept(tensors: Tensors, write_folder: Write, dtype: type) -> None:
    halves = {name: value.astype(dtype) for name, value in tensors.items()}
    read = open_checkpoint(write_folder(halves)).read(Q)
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, halves[Q])


@pytest.mark.parametrize("shards", [1, 3])
def test_names_without_the_prefix_of_a_causal_model_are_known(
    tensors: Tensors, write_folder: Write, shards: int
) -> None:
    flat = {name.removeprefix("model."): value for name, value in tensors.items()}
    checkpoint = open_checkpoint(write_folder(flat, shards))
    assert checkpoint.shapes() == {name: value.shape for name, value in tensors.items()}
    for name, value in tensors.items():
        np.testing.assert_array_equal(checkpoint.read(name), value)


def test_generation_config_adds_eos_ids(tensors: Tensors, write_folder: Write) -> None:
    folder = write_folder(tensors)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert open_checkpoint(folder).config.eos_token_ids == (2, 7)


def test_a_tied_head_and_rope_buffers_are_ignored(tensors: Tensors, write_folder: Write) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    checkpoint = open_checkpoint(write_folder(tensors | extra, tie_word_embeddings=True))
    assert checkpoint.shapes().keys() == tensors.keys() - {"lm_head.weight"}


def test_a_missing_tensor_is_named(tensors: Tensors, write_folder: Write) -> None:
    del tensors[Q]
    with pytest.raises(CheckpointError, match=f"{Q} is missing"):
        open_checkpoint(write_folder(tensors))


def test_a_wrong_shape_is_named(tensors: Tensors, write_folder: Write) -> None:
    tensors[Q] = tensors[Q][:, :-1].copy()
    with pytest.raises(CheckpointError, match=rf"{Q} has shape \[32, 31\].*\[32, 32\]"):
        open_checkpoint(write_folder(tensors))


def test_an_extra_tensor_is_named(tensors: Tensors, write_folder: Write) -> None:
    tensors["model.surprise"] = np.ones(1, np.float32)
    with pytest.raises(CheckpointError, match=r"model\.surprise is not part of"):
        open_checkpoint(write_folder(tensors))


def test_truncation_names_the_file(tensors: Tensors, write_folder: Write) -> None:
    folder = write_folder(tensors)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: damaged or truncated"):
        open_checkpoint(folder)


def test_a_corrupt_header_names_the_file(tensors: Tensors, write_folder: Write) -> None:
    folder = write_folder(tensors)
    file = folder / "model.safetensors"
    file.write_bytes(b"\xff" * 64 + file.read_bytes()[64:])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: damaged or truncated"):
        open_checkpoint(folder)


def test_a_missing_shard_is_named(tensors: Tensors, write_folder: Write) -> None:
    folder = write_folder(tensors, shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"00002-of-00002.*missing"):
        open_checkpoint(folder)


def test_broken_json_names_the_file(tensors: Tensors, write_folder: Write) -> None:
    folder = write_folder(tensors)
    (folder / "config.json").write_text('{"vocab_size": ')
    with pytest.raises(CheckpointError, match=r"config\.json: not valid JSON"):
        open_checkpoint(folder)


def test_an_integer_tensor_is_refused(tensors: Tensors, write_folder: Write) -> None:
    tensors[Q] = tensors[Q].astype(np.int8)
    with pytest.raises(UnsupportedModelError, match=f"{Q} is stored as I8"):
        open_checkpoint(write_folder(tensors))


def test_an_unknown_architecture_lists_what_is_supported(
    tensors: Tensors, write_folder: Write
) -> None:
    folder = write_folder(tensors, architectures=["MambaForCausalLM"])
    with pytest.raises(UnsupportedModelError, match=r"MambaForCausalLM.*LlamaForCausalLM"):
        open_checkpoint(folder)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        open_checkpoint(tmp_path)
    with pytest.raises(ModelNotFoundError, match="no such file or folder"):
        open_checkpoint(tmp_path / "nowhere")
