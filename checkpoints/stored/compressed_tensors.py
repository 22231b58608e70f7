"""quant_method compressed-tensors: FP8 and int8, whole or packed, and int4."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from checkpoints.stored.fp8 import scalar
from checkpoints.stored.module import LazyArray, Module, nibbles, plain, row_scales
from checkpoints.stored.raw import RawTensor, RawTensors, Replacement
from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.weights.inputs import InputRounding
from jaxserve.models.weights.scaled import CodeKind, Scaled

_FLOATS = ("F32", "F16", "BF16")
_FORMATS = (
    *("dense", "naive-quantized", "float-quantized", "int-quantized", "pack-quantized"),
    "mixed-precision",
)

_CACHE = {"type": "float", "num_bits": 8}


@dataclass(frozen=True, slots=True)
class _Group:
    """What a config group says of its modules' weights.

    Args:
        targets: classes, names, or patterns after "re:".
        rows, inputs: outputs and inputs of one scale; 0 inputs are all.
        ordered: inputs may be in groups of any order.
    """

    targets: tuple[str, ...]
    codes: CodeKind
    bits: int
    rows: int
    inputs: int
    symmetric: bool
    rounding: InputRounding | None

    def matches(self, stem: str) -> bool:
        def match(target: str) -> bool:
            if target.startswith("re:"):
                return re.match(target.removeprefix("re:"), stem) is not None
            return target == "Linear" or stem == target or stem.endswith("." + target)

        return any(map(match, self.targets))


def replacements(config: Mapping[str, Any], raw: RawTensors) -> Iterator[Replacement]:
    """stem.weight or stem.weight_packed, stem.weight_scale and what goes with them.

    Raises:
        UnsupportedModelError: a format, or a group's settings, that isn't implemented.
        CheckpointError: tensors that don't fit together.
    """
    form = config.get("format", "dense")
    sparse = (config.get("sparsity_config") or {}).get("format", "dense")
    for name, value in (("format", form), ("sparsity_config.format", sparse)):
        if value not in (_FORMATS if name == "format" else ("dense",)):
            raise UnsupportedModelError(
                f"compressed-tensors' {name} {value!r} isn't implemented; "
                f"supported: {', '.join(_FORMATS)}, without sparsity"
            )
    cache = config.get("kv_cache_scheme") or {}
    asked = {name: cache.get(name) for name in _CACHE}
    if cache and (asked != _CACHE or cache.get("dynamic")):
        raise UnsupportedModelError(
            f"compressed-tensors' kv_cache_scheme is {dict(cache)}; supported: float with 8 bits, "
            "static"
        )
    groups = [_group(name, group) for name, group in (config.get("config_groups") or {}).items()]
    for name in raw:
        stem, _, suffix = name.rpartition(".")
        if suffix == "weight_packed":
            yield _packed(Module(stem, raw), _group_of(stem, groups))
        elif suffix == "weight" and f"{stem}.weight_scale" in raw:
            yield _whole(Module(stem, raw), _group_of(stem, groups))


def _group_of(stem: str, groups: Sequence[_Group]) -> _Group:
    # A name or a pattern says more than a class.
    found = [g for g in groups if g.matches(stem)]
    for group in sorted(found, key=lambda g: "Linear" in g.targets):
        return group
    raise CheckpointError(f"{stem} is quantised, but no group of config_groups is for it")


def _group(name: str, group: Mapping[str, Any]) -> _Group:
    weights = group.get("weights") or {}
    kind, bits = weights.get("type", "int"), weights.get("num_bits", 8)
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else "tensor")
    kinds: Mapping[Any, CodeKind] = {
        ("float", 8): "fp8",
        ("int", 8): "int8",
        ("int", 4): "int4",
    }
    problem = None
    if (kind, bits) not in kinds:
        problem = f"weights of {kind} with {bits} bits"
    elif strategy not in ("tensor", "channel", "group", "block"):
        problem = f"the weights' strategy {strategy!r}"
    elif group.get("output_activations"):
        problem = "output_activations"
    elif group.get("format") not in (None, *_FORMATS):
        problem = f"the format {group['format']!r}"
    if problem:
        raise UnsupportedModelError(
            f"compressed-tensors' {name} asks for {problem}, which isn't implemented; supported: "
            "float 8 and int 8 or 4 bits, by tensor, channel, group or block"
        )
    rows, inputs = 1, 0
    if strategy == "block":
        rows, inputs = weights["block_structure"]
    elif strategy == "group":
        inputs = weights["group_size"]
    return _Group(
        tuple(group.get("targets") or ("Linear",)),
        kinds[kind, bits],
        bits,
        rows,
        inputs,
        weights.get("symmetric", True),
        _rounding(name, group.get("input_activations")),
    )


def _rounding(name: str, inputs: Mapping[str, Any] | None) -> InputRounding | None:
    if not inputs:
        return None
    kind, bits = inputs.get("type", "int"), inputs.get("num_bits", 8)
    dynamic, symmetric = inputs.get("dynamic", False), inputs.get("symmetric", True)
    strategy = inputs.get("strategy") or ("token" if dynamic else "tensor")
    sizes = {"token": 0, "group": inputs.get("group_size")}
    if (
        bits != 8
        or not symmetric
        or (dynamic not in (True, False))
        or (strategy not in (sizes if dynamic else ("tensor",)))
    ):
        raise UnsupportedModelError(
            f"compressed-tensors' {name} asks for input_activations of {kind} with {bits} bits, "
            f"strategy {strategy!r}, dynamic {dynamic}, symmetric {symmetric}, which isn't "
            "implemented; supported: 8 bits, symmetric, dynamic by token or group, or static by "
            "tensor"
        )
    dtype: Literal["int8", "float8_e4m3fn"] = "float8_e4m3fn" if kind == "float" else "int8"
    return InputRounding(dtype, sizes[strategy] if dynamic else None)


def _whole(module: Module, group: _Group) -> Replacement:
    """A weight of a type of 8 bits."""
    weight = module.take("weight", "F8_E4M3" if group.codes == "fp8" else "I8")
    shape = (weight.shape[0], weight.shape[1])
    arrays = {"codes": plain(weight), "scales": _scales(module, group, shape)}
    zeros = module.find("weight_zero_point")
    if zeros is not None and not group.symmetric:
        name = f"{module.stem}.weight_zero_point"
        arrays["zeros"] = row_scales(name, zeros, shape, group.rows, group.inputs)
    return _finished(module, group, shape, arrays)


def _packed(module: Module, group: _Group) -> Replacement:
    """Codes of 4 or 8 bits in 32-bit words, along the inputs."""
    weight = module.take("weight_packed", "I32")
    sizes = module.take("weight_shape").read()
    outputs, inputs = (int(size) for size in sizes.reshape(-1))
    per_word, bits = 32 // group.bits, group.bits
    if weight.shape != (outputs, -(-inputs // per_word)) or inputs % 2:
        raise CheckpointError(
            f"the tensor {module.stem}.weight_packed has shape {list(weight.shape)}, which doesn't "
            f"hold {outputs} x {inputs} codes of {bits} bits"
        )
    shape = (outputs, inputs)
    codes = LazyArray(
        (outputs, inputs * bits // 8),
        np.uint8 if bits == 4 else np.int8,
        lambda: _bytes(weight, inputs, bits),
    )
    arrays = {"codes": codes, "scales": _scales(module, group, shape)}
    zeros = module.find("weight_zero_point")
    if zeros is not None and not group.symmetric:
        count = arrays["scales"].shape[1]
        arrays["zeros"] = LazyArray(
            (outputs, count), np.int8, lambda: _zeros(zeros.read(), outputs, bits)
        )
    if (order := module.find("weight_g_idx")) is not None:
        arrays["groups"] = LazyArray((inputs,), np.int32, order.read)
    return _finished(module, group, shape, arrays)


def _scales(module: Module, group: _Group, shape: tuple[int, int]) -> LazyArray:
    scales = module.take("weight_scale", *_FLOATS)
    return row_scales(f"{module.stem}.weight_scale", scales, shape, group.rows, group.inputs)


def _finished(
    module: Module, group: _Group, shape: tuple[int, int], arrays: dict[str, LazyArray]
) -> Replacement:
    module.find("input_zero_point")
    if (scale := module.find("input_scale")) is not None and _is_static(group):
        arrays["input_scale"] = scalar(scale.read)
    elif _is_static(group):
        raise CheckpointError(f"the tensor {module.stem}.input_scale is missing")
    return module.replacement(shape, Scaled(group.codes, group.inputs), arrays, group.rounding)


def _is_static(group: _Group) -> bool:
    return group.rounding is not None and group.rounding.group is None


def _bytes(weight: RawTensor, inputs: int, bits: int) -> np.ndarray:
    raw = np.ascontiguousarray(weight.read()).view(np.uint8)
    if bits == 8:
        return (raw[:, :inputs] ^ 0x80).view(np.int8)
    return raw[:, : inputs // 2]


def _zeros(words: np.ndarray, outputs: int, bits: int) -> np.ndarray:
    """[out / per word, G] to [out, G]."""
    turned = np.ascontiguousarray(words.T)
    codes = nibbles(turned) if bits == 4 else turned.view(np.uint8)
    zeros = codes[:, :outputs].T.astype(np.int16) - np.int16(8 if bits == 4 else 128)
    return zeros.astype(np.int8)
