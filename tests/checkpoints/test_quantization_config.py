"""What a folder's quantization_config says, and formats whose packing is defined in a few lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from checkpoints import open_checkpoint
from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.weights.inputs import InputRounding
from tests.checkpoints.conftest import CONFIG
from tests.checkpoints.test_stored_forms import check_all
from tests.safetensors_file import write_safetensors

Tensors = dict[str, np.ndarray]
Write = Callable[..., Path]
NAMES = {"float32": "F32", "float16": "F16", "int32": "I32", "float8_e4m3fn": "F8_E4M3"}
Q = "model.layers.0.self_attn.q_proj.weight"


def save(folder: Path, tensors: Tensors) -> None:
    raw = {n: (NAMES[t.dtype.name], list(t.shape), t.tobytes()) for n, t in tensors.items()}
    write_safetensors(folder / "model.safetensors", raw)


def replaced(
    tensors: Tensors, make: Callable[[str, np.ndarray], tuple[Tensors, np.ndarray]]
) -> tuple[Tensors, Tensors]:
    """The tensors with what `make` gives for the layers' matrices, and those as floats."""
    stored: Tensors = {}
    floats: Tensors = {}
    for name, value in tensors.items():
        if name.endswith("proj.weight"):
            parts, floats[name] = make(name, value)
            stored |= {f"{name.removesuffix('weight')}{suffix}": t for suffix, t in parts.items()}
        else:
            stored[name] = value
    return stored, floats


def check_folder(folder: Path, floats: Tensors) -> None:
    checkpoint = open_checkpoint(folder)
    assert len(check_all(checkpoint)) == 2 * 4
    for name, expected in floats.items():
        np.testing.assert_array_equal(checkpoint.read(name), expected)


@pytest.mark.parametrize("group", [16, -1])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("bits", "version"), [(4, "gptq"), (4, "gptq_v2"), (8, "gptq")])
def test_gptq(
    tensors: Tensors, write_folder: Write, bits: int, version: str, ordered: bool, group: int
) -> None:
    """Words and zeros as AutoGPTQ packs them: numbers are scale * (code - zero)."""
    random = np.random.default_rng(0)
    per_word = 32 // bits

    def words(codes: np.ndarray) -> np.ndarray:  # [n, per word] along the last dimension
        shifts = np.arange(per_word, dtype=np.uint64) * bits
        groups = codes.astype(np.uint64).reshape(*codes.shape[:-1], -1, per_word)
        return (groups << shifts).sum(axis=-1).astype(np.uint32).view(np.int32)

    def make(name: str, value: np.ndarray) -> tuple[Tensors, np.ndarray]:
        outputs, inputs = value.shape
        size = inputs if group == -1 else group
        codes = random.integers(0, 2**bits, (inputs, outputs))
        zeros = random.integers(1, 2**bits, (inputs // size, outputs))
        scales = random.random((inputs // size, outputs)).astype(np.float16)
        order = np.arange(inputs, dtype=np.int32) // size
        order = random.permutation(order) if ordered else order
        kept = zeros - 1 if version == "gptq" else zeros
        parts = {
            "qweight": np.ascontiguousarray(words(np.ascontiguousarray(codes.T)).T),
            "qzeros": words(kept),
            "scales": scales,
            "g_idx": order,
        }
        numbers = scales[order].astype(np.float32) * (codes - zeros[order]).astype(np.float32)
        return parts, numbers.T

    stored, floats = replaced(tensors, make)
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": ordered}
    folder = write_folder({}, quantization_config=config | {"checkpoint_format": version})
    save(folder, stored)
    check_folder(folder, floats)


def fp8_blocks(name: str, value: np.ndarray) -> tuple[Tensors, np.ndarray]:
    """DeepSeek's: a factor for 12 x 12 numbers, at the edges for fewer."""
    random = np.random.default_rng(0)
    codes = (value * 100).astype(ml_dtypes.float8_e4m3fn)
    rows, columns = (-(-size // 12) for size in value.shape)
    scales = random.random((rows, columns)).astype(np.float32)
    spread = scales.repeat(12, axis=0).repeat(12, axis=1)[: value.shape[0], : value.shape[1]]
    return {"weight": codes, "weight_scale_inv": scales}, codes.astype(np.float32) * spread


def test_fp8_in_blocks(tensors: Tensors, write_folder: Write) -> None:
    stored, floats = replaced(tensors, fp8_blocks)
    config = {"quant_method": "fp8", "weight_block_size": [12, 12], "fmt": "e4m3"}
    folder = write_folder({}, quantization_config=config | {"activation_scheme": "dynamic"})
    save(folder, stored)
    check_folder(folder, floats)


@pytest.mark.parametrize(
    "names", [("weight_scale_inv", "activation_scale"), ("qscale_weight", "qscale_act")]
)
@pytest.mark.parametrize("scheme", ["static", "dynamic"])
def test_fp8_with_one_scale_a_tensor(
    tensors: Tensors, write_folder: Write, names: tuple[str, str], scheme: str
) -> None:
    def make(name: str, value: np.ndarray) -> tuple[Tensors, np.ndarray]:
        codes, scale = (value * 100).astype(ml_dtypes.float8_e4m3fn), np.float32(len(name) / 100)
        parts = {"weight": codes, names[0]: np.array(scale)}
        if scheme == "static":
            parts[names[1]] = np.array(np.float32(len(name)))
        return parts, codes.astype(np.float32) * scale

    stored, floats = replaced(tensors, make)
    config = {"quant_method": "fp8", "activation_scheme": scheme, "weight_block_size": None}
    folder = write_folder({}, quantization_config=config)
    save(folder, stored)
    check_folder(folder, floats)
    found = open_checkpoint(folder).stored(Q)
    assert found is not None
    weight = found.read()
    assert weight.rounding == InputRounding("float8_e4m3fn", None if scheme == "static" else 0)
    if scheme == "static":
        assert weight.arrays["input_scale"] == len(Q)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"quant_method": "bitsandbytes"}, "'bitsandbytes'.*supported: awq, compressed"),
    "bits": ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "GPTQ with 3 bits"),
    "version": ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version gemv"),
    "fp8": ({"quant_method": "fp8", "fmt": "e5m2"}, "'e5m2'"),
    "sparse": (
        {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24"}},
        "sparse-24",
    ),
    "format": ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "nvfp4"),
    "weights": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 2, "type": "int"}}},
        },
        "group_0 asks for weights of int with 2 bits",
    ),
    "inputs": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "group_0": {
                    "weights": {"num_bits": 8, "type": "int"},
                    "input_activations": {"num_bits": 8, "symmetric": False, "dynamic": True},
                }
            },
        },
        "symmetric False",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_implemented_is_refused_by_name(
    tensors: Tensors, write_folder: Write, case: str
) -> None:
    config, message = REFUSED[case]
    with pytest.raises(UnsupportedModelError, match=message):
        open_checkpoint(write_folder(tensors, quantization_config=config))


def test_scales_that_do_not_fit_are_named(tensors: Tensors, write_folder: Write) -> None:
    stored, _ = replaced(tensors, fp8_blocks)
    config = {"quant_method": "fp8", "weight_block_size": [8, 8]}
    folder = write_folder({}, quantization_config=config)
    save(folder, stored)
    with pytest.raises(CheckpointError, match=r"weight_scale_inv has shape.*no scales"):
        open_checkpoint(folder)


def test_a_missing_scale_is_named(tensors: Tensors, write_folder: Write) -> None:
    stored, _ = replaced(tensors, fp8_blocks)
    del stored[Q + "_scale_inv"]
    config = {"quant_method": "fp8", "weight_block_size": [12, 12]}
    folder = write_folder({}, quantization_config=config)
    save(folder, stored)
    with pytest.raises(CheckpointError, match=f"{Q}_scale_inv is missing"):
        open_checkpoint(folder)


def test_the_sizes_are_those_of_the_config() -> None:
    assert CONFIG["hidden_size"] % 12 != 0  # so that blocks are cut off at the edges
