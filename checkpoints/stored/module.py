"""One linear module's tensors in a folder, and what the quantised formats have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from checkpoints.stored.assemble import StoredTensor
from checkpoints.stored.raw import TYPES, RawTensor, RawTensors, Replacement
from jaxserve.errors import CheckpointError
from jaxserve.models.weights import Scheme, Weight
from jaxserve.models.weights.inputs import InputRounding

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LazyArray:
    """An array whose shape and type are known before it is read."""

    shape: Shape
    dtype: Any
    read: Callable[[], np.ndarray]


@dataclass(slots=True)
class Module:
    """The tensors stem.*; those that are taken make up its weight.

    Args:
        used: names of the tensors taken.
    """

    stem: str
    raw: RawTensors
    used: set[str] = field(default_factory=set)

    def find(self, *suffixes: str) -> RawTensor | None:
        """The first of these tensors that is there."""
        for name in (f"{self.stem}.{suffix}" for suffix in suffixes):
            if name in self.raw:
                self.used.add(name)
                return self.raw[name]
        return None

    def take(self, suffix: str, *dtypes: str, shape: Shape | None = None) -> RawTensor:
        """A tensor that must be there, of one of these types and of this shape.

        Raises:
            CheckpointError: names it.
        """
        name, tensor = f"{self.stem}.{suffix}", self.find(suffix)
        if tensor is None:
            raise CheckpointError(f"the tensor {name} is missing")
        if dtypes and tensor.dtype not in dtypes:
            raise CheckpointError(
                f"the tensor {name} is stored as {tensor.dtype}, not {' or '.join(dtypes)}"
            )
        if shape is not None and tensor.shape != shape:
            raise CheckpointError(
                f"the tensor {name} has shape {list(tensor.shape)}, not {list(shape)}"
            )
        return tensor

    def replacement(
        self,
        shape: tuple[int, int],
        scheme: Scheme,
        arrays: Mapping[str, LazyArray],
        rounding: InputRounding | None = None,
    ) -> Replacement:
        """What these arrays stand for: stem.weight [out, in]."""
        form = {n: jax.ShapeDtypeStruct(a.shape, a.dtype) for n, a in arrays.items()}

        def read() -> Weight:
            return Weight({n: a.read() for n, a in arrays.items()}, scheme, rounding)

        stored = StoredTensor(Weight(form, scheme, rounding), read)
        return Replacement(f"{self.stem}.weight", shape, stored, frozenset(self.used))


def plain(tensor: RawTensor) -> LazyArray:
    """A tensor as it is."""
    return LazyArray(tensor.shape, TYPES[tensor.dtype], tensor.read)


def row_scales(
    name: str, scales: RawTensor, shape: tuple[int, int], rows: int, group: int
) -> LazyArray:
    """Scales, or zeros, [out, G] of a matrix [out, in].

    Args:
        scales: one, one an output [out] or [out, 1], or one for so many outputs and inputs.
        rows, group: how many; a group of 0 is all inputs.

    Raises:
        CheckpointError: another shape; names it.
    """
    outputs, inputs = shape
    groups = -(-inputs // group) if group else 1
    if math.prod(scales.shape) == 1:
        wanted: Shape = (1, 1)
    elif scales.shape in ((outputs,), (outputs, groups)) and (rows == 1 or groups == 1):
        wanted = (outputs, groups)
    else:
        wanted = (-(-outputs // rows), groups)
    if math.prod(wanted) != math.prod(scales.shape):
        raise CheckpointError(
            f"the tensor {name} has shape {list(scales.shape)}, which gives a matrix of "
            f"{outputs} x {inputs} no scales"
        )

    def read() -> np.ndarray:
        found = scales.read().reshape(wanted)
        if wanted == (1, 1):
            return np.broadcast_to(found, (outputs, groups))
        if len(found) == outputs:
            return found
        return np.repeat(found, rows, axis=0)[:outputs]

    return LazyArray((outputs, groups), TYPES[scales.dtype], read)


def nibbles(words: np.ndarray) -> np.ndarray:
    """The eight codes of each int32, from the lowest bits on: [..., n] -> [..., 8 n] uint8."""
    raw = np.ascontiguousarray(words).view(np.uint8)
    return np.stack([raw & 15, raw >> 4], axis=-1).reshape(*words.shape[:-1], -1)


def pack(codes: np.ndarray) -> np.ndarray:
    """Codes of 4 bits, two a byte, the first one low: [..., 2 n] -> [..., n] uint8."""
    return codes[..., ::2] | codes[..., 1::2] << 4
