"""Orbax folders, written and read, against the checkpoints that they were made from."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints import open_checkpoint
from checkpoints.convert import convert
from jaxserve.config import Quantization
from jaxserve.errors import CheckpointError, ConfigError, ModelError, ModelNotFoundError
from jaxserve.models.weights import Joined
from jaxserve.text.tokenizer import load_tokenizer
from tests.checkpoints.test_gguf_file import as_gguf
from tests.loaded_model import LoadedModel, load_model

# The dimensions of a parameter that a product sums over.
CONTRACTED = {
    "attention.qkv": (-1,),
    "attention.out": (-2, -1),
    "mlp.gate_up": (-1,),
    "mlp.down": (-1,),
}
Q8, Q4 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0
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


def test_a_converted_folder_has_the_same_bits(tiny_llama: Path, converted: Path) -> None:
    assert_same(load_model(tiny_llama, F32), load_model(converted, F32))
    text = "Größe 🚀"
    assert load_tokenizer(converted).encode(text) == load_tokenizer(tiny_llama).encode(text)
    stored = open_checkpoint(converted)
    assert stored.nbytes == sum(leaf.nbytes for leaf in load_model(converted, F32).leaves)
    assert not list(converted.parent.glob(".*"))


@pytest.mark.slow
def test_a_converted_gguf_file_has_the_same_bits(demo_model: Path, tmp_path: Path) -> None:
    convert(demo_model, tmp_path / "orbax", None)
    assert_same(load_model(demo_model, F32), load_model(tmp_path / "orbax", F32))
    own, theirs = load_tokenizer(tmp_path / "orbax"), load_tokenizer(demo_model)
    chat = [{"role": "user", "content": "Größe 🚀"}]
    assert own.apply_chat_template(chat) == theirs.apply_chat_template(chat)
    assert own.encode("Größe 🚀") == theirs.encode("Größe 🚀")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.slow
def test_any_type(tiny_llama: Path, tmp_path: Path, dtype: str) -> None:
    convert(tiny_llama, tmp_path / "orbax", dtype)
    kind = jnp.dtype(dtype)
    assert_same(load_model(tiny_llama, kind), load_model(tmp_path / "orbax", kind))


@pytest.mark.slow
def test_int8_is_within_half_a_step_of_each_channel(tiny_llama: Path, tmp_path: Path) -> None:
    convert(tiny_llama, tmp_path / "orbax", None, "int8")
    stored = open_checkpoint(tmp_path / "orbax")
    exact = open_checkpoint(tiny_llama)
    quantised = 0
    for path in exact.parameters():
        value, read = np.asarray(exact.parameter(path)), np.asarray(stored.parameter(path))
        axes = CONTRACTED.get(".".join(map(str, path[2:])))
        if axes is None:
            np.testing.assert_array_equal(read, value)
        else:
            step = np.abs(value).max(axis=axes, keepdims=True) / 127
            assert (np.abs(read - value) <= 0.5001 * step).all()
            assert len(np.unique(read)) > 100
            quantised += 1
    assert quantised == 4 * exact.config.num_hidden_layers
    assert stored.nbytes < 0.6 * exact.nbytes
    # Parameters are loaded in the type that is asked for: bfloat16 here.
    kinds = {leaf.dtype for leaf in load_model(tmp_path / "orbax", jnp.dtype("bfloat16")).leaves}
    assert kinds == {jnp.dtype("bfloat16")}


@pytest.mark.parametrize("kind", ["fp8", "int8", "int4"])
def test_what_is_quantised_at_load_is_what_convert_writes(
    tiny_llama: Path, tmp_path: Path, kind: Quantization
) -> None:
    convert(tiny_llama, tmp_path / "orbax", None, kind)
    for packed in (True, False):
        written = load_model(tmp_path / "orbax", F32, packed=packed)
        at_load = load_model(tiny_llama, F32, packed=packed, quantization=kind)
        assert written.structure == at_load.structure
        assert_same(written, at_load)
    small = load_model(tmp_path / "orbax", F32, packed=True)
    codes = sum(leaf.size for leaf in small.leaves if leaf.dtype.itemsize == 1)
    whole = sum(leaf.size for leaf in load_model(tiny_llama, F32).leaves)
    assert codes > whole / (4 if kind == "int4" else 2)


def test_what_is_quantised_stays_so(tensors: Tensors, write_gguf: Write, tmp_path: Path) -> None:
    path = write_gguf(as_gguf(tensors), lambda n: Q4 if "attn_v" in n else Q8)
    convert(path, tmp_path / "orbax", None)
    for packed in (True, False):
        assert_same(
            load_model(path, F32, packed=packed), load_model(tmp_path / "orbax", F32, packed=packed)
        )
    assert any(isinstance(f, Joined) for f in load_model(path, F32, packed=True).forms.values())
    with pytest.raises(ConfigError, match="quantised already"):
        convert(path, tmp_path / "again", None, "int8")
    convert(path, tmp_path / "floats", "float32")
    assert_same(load_model(path, F32), load_model(tmp_path / "floats", F32, packed=True))


ON_MESHES = """
import sys
from pathlib import Path
import jax, numpy as np
from tests.loaded_model import load_model

dtype = jax.numpy.dtype("float32")
exact = load_model(Path(sys.argv[1]), dtype)
for folder in sys.argv[2:]:
    for size in (8, 2):
        mesh = jax.make_mesh((8 // size, size), ("data", "tensor"))
        model = load_model(Path(folder), dtype, mesh=mesh)
        cut = 0
        for leaf, whole in zip(model.leaves, exact.leaves, strict=True):
            whole = np.asarray(whole)
            error = np.abs(whole).max() / 254 if "int8" in folder else 0
            assert len(leaf.addressable_shards) == 8
            for shard in leaf.addressable_shards:
                assert np.abs(np.asarray(shard.data) - whole[shard.index]).max() <= 1.001 * error
            cut += leaf.addressable_shards[0].data.nbytes * size == leaf.nbytes
        print(size, cut)
"""


@pytest.mark.slow
def test_each_device_of_a_mesh_gets_its_own_part(
    tiny_llama: Path, converted: Path, tmp_path: Path
) -> None:
    convert(tiny_llama, tmp_path / "int8", None, "int8")
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    command = [sys.executable, "-c", ON_MESHES, str(tiny_llama), str(tiny_llama)]
    command += [str(converted), str(tmp_path / "int8")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    # Embedding, head and both layers' MLP; and their attention, where the 2 kv heads can be
    # divided. Norms are replicated.
    assert done.stdout.splitlines() == ["8 6", "2 10"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("reached", ["params/layers.0", "params/layers.1"])
def test_a_convert_that_is_killed_leaves_nothing_that_looks_complete(
    tiny_llama: Path, tmp_path: Path, reached: str
) -> None:
    target = tmp_path / "orbax"
    command = [sys.executable, "-m", "jaxserve.cli.main", "convert", str(tiny_llama), str(target)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not list(tmp_path.glob(f".orbax-*/{reached}")):
        assert process.poll() is None
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not target.exists()
    (left,) = tmp_path.iterdir()
    with pytest.raises(ModelError):
        open_checkpoint(left)
    convert(tiny_llama, target, None)
    assert_same(load_model(tiny_llama, F32), load_model(target, F32))


def test_an_existing_target_is_not_changed(tiny_llama: Path, converted: Path) -> None:
    before = (converted / "jaxserve.json").read_text()
    with pytest.raises(ConfigError, match="exists already"):
        convert(tiny_llama, converted, None)
    assert (converted / "jaxserve.json").read_text() == before


def test_a_conversion_that_fails_leaves_nothing(
    tensors: Tensors, write_folder: Write, tmp_path: Path
) -> None:
    tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = np.nan  # after half of the model
    folder = write_folder(tensors)
    with pytest.raises(CheckpointError, match=r"NaN.*layers\.1\.mlp\.down_proj\.weight"):
        convert(folder, tmp_path / "orbax", None)
    assert list(tmp_path.iterdir()) == [folder]


# Orbax drops the other reads of a failed one without awaiting them.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_damage_names_the_tensor(converted: Path) -> None:
    files = [f for f in (converted / "params" / "layers.1").rglob("*") if f.is_file()]
    largest = max(files, key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 4 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 4)
    largest.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match=r"the tensor layers\.1\.\S+ is missing or damaged"):
        load_model(converted, F32)


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
    with pytest.raises(CheckpointError, match="the tensor surprise is not part of"):
        open_checkpoint(converted)


def test_an_unfinished_folder_is_refused(converted: Path) -> None:
    (converted / "jaxserve.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"no model\.safetensors"):
        open_checkpoint(converted)
