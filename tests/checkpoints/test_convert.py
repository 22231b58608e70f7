"""Orbax out and in, against the checkpoints it was made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints import open_checkpoint
from checkpoints.convert import convert
from jaxserve.engine.loader import LoadedModel, load_model
from jaxserve.errors import CheckpointError, ConfigError, ModelNotFoundError
from jaxserve.text.tokenizer import load_tokenizer

Tensors = dict[str, np.ndarray]
Write = Callable[..., Path]
F32 = jnp.dtype(jnp.float32)


@pytest.fixture
def converted(tiny_llama: Path, tmp_path: Path) -> Path:
    convert(tiny_llama, tmp_path / "orbax", None)
    return tmp_path / "orbax"


def assert_same(a: LoadedModel, b: LoadedModel) -> None:
    assert a.config == b.config
    for x, y in zip(a.leaves, b.leaves, strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_a_folder_comes_back_bit_for_bit(tiny_llama: Path, converted: Path) -> None:
    assert_same(load_model(tiny_llama, F32, False), load_model(converted, F32, False))
    text = "Größe 🚀"
    assert load_tokenizer(converted).encode(text) == load_tokenizer(tiny_llama).encode(text)
    stored = open_checkpoint(converted)
    assert stored.nbytes == sum(leaf.nbytes for leaf in load_model(converted, F32, False).leaves)
    assert not list(converted.parent.glob(".*"))


@pytest.mark.slow
def test_gguf_comes_back_bit_for_bit(demo_model: Path, tmp_path: Path) -> None:
    convert(demo_model, tmp_path / "orbax", None)
    assert_same(load_model(demo_model, F32, False), load_model(tmp_path / "orbax", F32, False))
    own, theirs = load_tokenizer(tmp_path / "orbax"), load_tokenizer(demo_model)
    chat = [{"role": "user", "content": "Größe 🚀"}]
    assert own.apply_chat_template(chat) == theirs.apply_chat_template(chat)
    assert own.encode("Größe 🚀") == theirs.encode("Größe 🚀")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_any_type(tiny_llama: Path, tmp_path: Path, dtype: str) -> None:
    convert(tiny_llama, tmp_path / "orbax", dtype)
    kind = jnp.dtype(dtype)
    assert_same(load_model(tiny_llama, kind, False), load_model(tmp_path / "orbax", kind, False))


def test_a_target_that_is_there_is_left_alone(tiny_llama: Path, converted: Path) -> None:
    before = (converted / "jaxserve.json").read_text()
    with pytest.raises(ConfigError, match="is there already"):
        convert(tiny_llama, converted, None)
    assert (converted / "jaxserve.json").read_text() == before


def test_what_breaks_off_leaves_nothing(
    tensors: Tensors, write_folder: Write, tmp_path: Path
) -> None:
    tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = np.nan  # after half of the model
    folder = write_folder(tensors)
    with pytest.raises(CheckpointError, match=r"NaN.*layers\.1\.mlp\.down_proj\.weight"):
        convert(folder, tmp_path / "orbax", None)
    assert list(tmp_path.iterdir()) == [folder]


# Orbax lets go of the failed read's siblings without looking at them.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_damage_names_the_tensor(converted: Path) -> None:
    files = [f for f in (converted / "params" / "layers.1").rglob("*") if f.is_file()]
    largest = max(files, key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 4 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 4)
    largest.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match=r"the tensor layers\.1\.\S+ is missing or damaged"):
        load_model(converted, F32, False)


def test_a_manifest_that_does_not_fit_names_the_tensor(converted: Path) -> None:
    file = converted / "jaxserve.json"
    manifest = json.loads(file.read_text())
    name = "layers.0.attention.qkv"
    entry = manifest["tensors"].pop(name)
    file.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=rf"the tensor {name} is missing"):
        open_checkpoint(converted)
    manifest["tensors"] |= {name: entry, "surprise": entry}
    file.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="the tensor surprise has no place"):
        open_checkpoint(converted)


def test_an_unfinished_folder_is_no_model(converted: Path) -> None:
    (converted / "jaxserve.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"no model\.safetensors"):
        open_checkpoint(converted)
