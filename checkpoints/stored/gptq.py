"""GPTQ's and AWQ's files: int4 (GPTQ's int8 too) in 32-bit words, zeros, and scales of groups.

The layouts are those of AutoGPTQ's and AutoAWQ's packing, which their successors keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from checkpoints.stored.module import TYPES, LazyArray, Module, nibbles, pack
from checkpoints.stored.raw import RawTensor, RawTensors, Replacement
from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.weights.scaled import Scaled

_FLOATS = ("F16", "BF16", "F32")
# Where AWQ's words have the codes of eight outputs in a row.
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def gptq(config: Mapping[str, Any], raw: RawTensors) -> Iterator[Replacement]:
    """qweight [in / per word, out], qzeros [G, out / per word], scales [G, out], g_idx [in].

    Raises:
        UnsupportedModelError: other bits than 4 or 8.
        CheckpointError: tensors that don't fit together.
    """
    bits = config.get("bits")
    if bits not in (4, 8):
        raise UnsupportedModelError(f"GPTQ with {bits} bits isn't implemented; supported: 4 and 8")
    per_word = 32 // bits
    # The first version of the format keeps zeros less one.
    less = 0 if config.get("checkpoint_format", "gptq") == "gptq_v2" else 1
    for module in _modules(raw):
        weight = module.take("qweight", "I32")
        inputs, outputs = weight.shape[0] * per_word, weight.shape[1]
        group, groups = _groups(config, inputs)
        scales = module.take("scales", *_FLOATS, shape=(groups, outputs))
        zeros = module.take("qzeros", "I32", shape=(groups, outputs // per_word))
        order = module.find("g_idx")
        width = inputs // 2 if bits == 4 else inputs
        arrays = {
            "codes": LazyArray(
                (outputs, width),
                np.uint8 if bits == 4 else np.int8,
                partial(_gptq_codes, weight, bits),
            ),
            "scales": _turned(scales),
            "zeros": LazyArray(
                (outputs, groups),
                np.int16,
                partial(_gptq_zeros, zeros, bits, less),
            ),
        }
        if config.get("desc_act") and order is not None:
            arrays["groups"] = LazyArray((inputs,), np.int32, order.read)
        elif order is not None:
            trivial = np.arange(inputs) // (group or inputs)
            if not np.array_equal(order.read(), trivial):
                raise CheckpointError(
                    f"{module.stem}.g_idx has inputs in another order, but desc_act isn't set"
                )
        scheme = Scaled("int4" if bits == 4 else "int8", group)
        yield module.replacement((outputs, inputs), scheme, arrays)


def awq(config: Mapping[str, Any], raw: RawTensors) -> Iterator[Replacement]:
    """qweight [in, out / 8], qzeros [G, out / 8], scales [G, out].

    Raises:
        UnsupportedModelError: other bits than 4, or another version than gemm.
        CheckpointError: tensors that don't fit together.
    """
    bits, version = config.get("bits", 4), str(config.get("version", "gemm")).lower()
    if bits != 4 or version != "gemm":
        raise UnsupportedModelError(
            f"AWQ with {bits} bits, version {version}, isn't implemented; supported: 4 bits, gemm"
        )
    for module in _modules(raw):
        weight = module.take("qweight", "I32")
        inputs, outputs = weight.shape[0], 8 * weight.shape[1]
        group, groups = _groups(config, inputs)
        scales = module.take("scales", *_FLOATS, shape=(groups, outputs))
        arrays = {
            "codes": LazyArray(
                (outputs, inputs // 2),
                np.uint8,
                partial(_awq_packed, weight),
            ),
            "scales": _turned(scales),
        }
        if (zeros := module.find("qzeros")) is not None:
            arrays["zeros"] = LazyArray(
                (outputs, groups),
                np.int16,
                partial(_awq_zeros, zeros),
            )
        yield module.replacement((outputs, inputs), Scaled("int4", group), arrays)


def _modules(raw: RawTensors) -> Iterator[Module]:
    for name in raw:
        if name.endswith(".qweight"):
            yield Module(name.removesuffix(".qweight"), raw)


def _groups(config: Mapping[str, Any], inputs: int) -> tuple[int, int]:
    """Inputs of a group, 0 being all, and how many groups there are."""
    size = config.get("group_size", config.get("q_group_size", 128))
    return (0, 1) if size in (-1, None) else (size, -(-inputs // size))


def _turned(scales: RawTensor) -> LazyArray:
    shape = (scales.shape[1], scales.shape[0])
    return LazyArray(shape, TYPES[scales.dtype], lambda: np.ascontiguousarray(scales.read().T))


def _gptq_codes(weight: RawTensor, bits: int) -> np.ndarray:
    """[in / per word, out] to [out, in], or [out, in / 2] of 4 bits."""
    codes = np.ascontiguousarray(weight.read().T).view(np.uint8)
    return codes if bits == 4 else (codes ^ 0x80).view(np.int8)


def _gptq_zeros(zeros: RawTensor, bits: int, less: int) -> np.ndarray:
    """[G, out / per word] to [out, G], less what Scaled's codes are less."""
    words = zeros.read()
    unpacked = nibbles(words) if bits == 4 else np.ascontiguousarray(words).view(np.uint8)
    offset = (8 if bits == 4 else 128) - less
    return np.ascontiguousarray(unpacked.T).astype(np.int16) - np.int16(offset)


def _awq_packed(weight: RawTensor) -> np.ndarray:
    return pack(np.ascontiguousarray(_awq_codes(weight.read()).T))


def _awq_zeros(zeros: RawTensor) -> np.ndarray:
    return np.ascontiguousarray(_awq_codes(zeros.read()).T).astype(np.int16) - np.int16(8)


def _awq_codes(words: np.ndarray) -> np.ndarray:
    """[n, out / 8] to [n, out] uint8."""
    found = nibbles(words).reshape(len(words), -1, 8)
    return found[..., _AWQ_PLACES].reshape(len(words), -1)
