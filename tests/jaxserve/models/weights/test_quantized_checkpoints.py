"""Checkpoints by compressed-tensors and in AutoAWQ's format (tests/golden/make_quantized.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from tiny_weights import make

from checkpoints import open_checkpoint
from jaxserve.models.weights import Joined, Weight
from tests.jaxserve.models.test_families import run
from tests.loaded_model import LoadedModel, load_model
from tests.safetensors_file import write_safetensors

GOLDENS = Path(__file__).parents[3] / "golden" / "quantized"
NAMES = sorted(path.stem for path in GOLDENS.glob("*.npz"))
F32 = jnp.dtype(jnp.float32)
Q = "model.layers.0.self_attn.q_proj.weight"


Tensors = dict[str, tuple[str, list[int], bytes]]


def write(name: str, folder: Path, more: Tensors | None = None, **quantization: Any) -> Any:
    """Writes the checkpoint's folder with more tensors and settings; returns the golden."""
    golden = np.load(GOLDENS / f"{name}.npz")
    config = json.loads(str(golden["config"]))
    config["quantization_config"] |= quantization
    (folder / "config.json").write_text(json.dumps(config))
    tensors: Tensors = dict(more or {})
    for key, dtype in json.loads(str(golden["tensors"])).items():
        if f"bytes_{key}" in golden:
            data, shape = golden[f"bytes_{key}"].tobytes(), golden[f"shape_{key}"].tolist()
        else:
            value = make(key, SHAPES[key.split(".")[-2]])
            data, shape = value.tobytes(), list(value.shape)
        tensors[key] = DTYPES[dtype], shape, data
    write_safetensors(folder / "model.safetensors", tensors)
    return golden


DTYPES = {
    "float8_e4m3fn": "F8_E4M3",
    "float16": "F16",
    "float32": "F32",
    "int8": "I8",
    "int32": "I32",
    "int64": "I64",
}
SHAPES: dict[str, tuple[int, ...]] = {
    "embed_tokens": (32, 64),
    "lm_head": (32, 64),
    **dict.fromkeys(("norm", "input_layernorm", "post_attention_layernorm"), (64,)),
}


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_compressed_tensors(name: str, tmp_path: Path) -> None:
    golden = write(name, tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    got, expected = checkpoint.read(Q), golden[f"floats_{Q}"]
    np.testing.assert_array_equal(got, expected)
    stored = checkpoint.stored(Q)
    assert stored is not None
    assert sum(a.nbytes for a in stored.read().arrays.values()) < expected.nbytes / 3


@pytest.mark.parametrize(("packed", "columns"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(
    name: str, packed: bool, columns: bool, tmp_path: Path
) -> None:
    golden = write(name, tmp_path)
    model = load_model(tmp_path, F32, packed=packed, columns=columns)
    check_kept(model, packed)
    (got,) = run(model, [golden["ids"]])
    error = np.abs(got - golden["logits"]).max() / np.abs(golden["logits"]).max()
    # A token's largest input lies between two of int8's codes by definition: the last bit decides.
    assert error < (0.012 if name == "int8" else 1e-4)


def check_kept(model: LoadedModel, packed: bool) -> None:
    small = {np.dtype(t) for t in (np.int8, np.uint8, np.uint32, ml_dtypes.float8_e4m3fn)}
    kept = {np.dtype(leaf.dtype) for leaf in model.leaves} & small
    assert bool(kept) == packed
    for form in model.forms.values():
        assert isinstance(form, Weight | Joined)


def with_kv_scales(folder: Path, scales: tuple[float, float]) -> Any:
    """The FP8 checkpoint with scales of keys and of values, as compressed-tensors stores them."""
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    extra = {
        f"model.layers.0.self_attn.{name}_scale": ("F32", [1], np.float32(scale).tobytes())
        for name, scale in zip("kv", scales, strict=True)
    }
    return write("fp8_channel", folder, extra, kv_cache_scheme=scheme)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_scales_of_the_kv_cache(dtype: str, tmp_path: Path) -> None:
    logits = {}
    for name, scales in {
        "none": (1.0, 1.0),
        "fit": (0.5, 0.125),
        "large": (2.0**30, 2.0**30),
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        golden = with_kv_scales(folder, scales)
        model = load_model(folder, F32)
        (logits[name],) = run(model, [golden["ids"]], jnp.dtype(dtype))
        # A cache of floats needs no scales.
        (whole,) = run(model, [golden["ids"]])
        assert np.abs(whole - golden["logits"]).max() < 1e-4 * np.abs(whole).max()
    # Powers of two change no digit of a number that stays within the range of the type.
    np.testing.assert_allclose(logits["fit"], logits["none"], rtol=1e-3, atol=1e-3)
    errors = {name: np.abs(found - whole).mean() for name, found in logits.items()}
    assert 0 < errors["none"] < errors["large"] / 1.5
