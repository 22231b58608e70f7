"""Tensors as safetensors files list them, not read yet, and what a format makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from checkpoints.stored.assemble import StoredTensor


@dataclass(frozen=True, slots=True)
class RawTensor:
    """Args:
    dtype: safetensors' name of it, as F8_E4M3.
    read: its numbers; uint8 where it is F8_E8M0.
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
