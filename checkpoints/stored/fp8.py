"""quant_method fp8: DeepSeek's and Qwen's blocks, and Mistral's scales of whole tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from checkpoints.stored.module import LazyArray, Module, plain, row_scales
from checkpoints.stored.raw import RawTensors, Replacement
from jaxserve.errors import UnsupportedModelError
from jaxserve.models.weights.inputs import InputRounding
from jaxserve.models.weights.scaled import Scaled

# The scale is a factor, whatever its name says. qscale_* are Mistral's own names.
_WEIGHT_SCALES = ("weight_scale_inv", "weight_scale", "qscale_weight", "scale")
_INPUT_SCALES = ("activation_scale", "input_scale", "qscale_act")


def replacements(config: Mapping[str, Any], raw: RawTensors) -> Iterator[Replacement]:
    """stem.weight F8_E4M3 [out, in] and its scale.

    Raises:
        UnsupportedModelError: another variant.
        CheckpointError: tensors that don't fit together.
    """
    kind = config.get("fmt", "e4m3")
    scheme = config.get("activation_scheme", "dynamic")
    block = config.get("weight_block_size")
    if kind != "e4m3" or scheme not in ("dynamic", "static"):
        raise UnsupportedModelError(
            f"quantization_config asks for fmt {kind!r} and activation_scheme {scheme!r}; "
            "supported: e4m3, and dynamic or static"
        )
    rows, group = block or (1, 0)
    for name, weight in raw.items():
        if not (name.endswith(".weight") and weight.dtype == "F8_E4M3"):
            continue
        module = Module(name.removesuffix(".weight"), raw)
        weight = module.take("weight", "F8_E4M3")
        shape = (weight.shape[0], weight.shape[1])
        scales = module.find(*_WEIGHT_SCALES) or module.take(_WEIGHT_SCALES[0])
        arrays = {
            "codes": plain(weight),
            "scales": row_scales(f"{module.stem}.{_WEIGHT_SCALES[0]}", scales, shape, rows, group),
        }
        rounding = InputRounding("float8_e4m3fn", group if shape[1] % (group or 1) == 0 else 0)
        if scheme == "static":
            scale = module.find(*_INPUT_SCALES) or module.take(_INPUT_SCALES[0])
            arrays["input_scale"] = scalar(scale.read)
            rounding = InputRounding("float8_e4m3fn", None)
        yield module.replacement(shape, Scaled("fp8", group), arrays, rounding)


def scalar(read: Any) -> LazyArray:
    """One float32, whatever dimensions it has in the file."""
    return LazyArray((), np.float32, lambda: np.asarray(read(), np.float32).reshape(()))
