"""Tensors as safetensors files list them, not read yet, and what a format makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from checkpoints.stored.assemble import StoredTensor

# By safetensors' name. A scale of F8_E8M0 is read as its byte.
TYPES: Mapping[str, Any] = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": np.uint8,
    "I8": np.int8,
    "U8": np.uint8,
    "I32": np.int32,
    "I64": np.int64,
}


@dataclass(frozen=True, slots=True)
class RawTensor:
    """Args:
    dtype: safetensors' name of it, a key of TYPES.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]


RawTensors = Mapping[str, RawTensor]


@dataclass(frozen=True, slots=True)
class Replacement:
    """What a file keeps in place of one tensor of floats.

    Args:
        name, shape: of the tensor that it stands for.
        used: names of the tensors that it is made of.
    """

    name: str
    shape: tuple[int, ...]
    stored: StoredTensor
    used: frozenset[str]
