"""Stored tensors, each [rows, ...], to one stored parameter [*O, ...]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import ml_dtypes  # noqa: F401 (NumPy learns the names of small floats)
import numpy as np

from jaxserve.models.weights import Joined, Stored, Weight


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What a file keeps in place of one tensor of floats.

    Args:
        form: its arrays' shapes and types.
        read: the same with the arrays, from disk.
    """

    form: Weight
    read: Callable[[], Weight]


def assemble(parts: Sequence[Weight], outputs: np.ndarray, experts: bool) -> Stored | None:
    """One parameter of tensors, or its form of their forms.

    Args:
        parts: [rows, ...] each.
        outputs: [*O], for each output its row among those of all parts, one part after the other.
        experts: the first dimension of O is the experts'.

    Returns:
        None where the tensors' schemes are mixed in a way that no join along one dimension gives.
    """
    if experts and any(_shared(part) for part in parts) and len(parts) % len(outputs) == 0:
        return _stacked(parts, outputs)
    rows = [part.outputs[0] for part in parts]
    first = np.concatenate([[0], np.cumsum(rows)])
    part_of = np.searchsorted(first, outputs, side="right") - 1
    kinds: dict[Any, int] = {}
    kind_of = np.array([kinds.setdefault(_kind(part, i), i) for i, part in enumerate(parts)])
    kind = kind_of[part_of]
    if (kind == kind.flat[0]).all():
        return _gathered(parts, outputs, first, part_of)
    for axis in range(1 if experts else 0, outputs.ndim):
        line = kind[tuple(slice(None) if i == axis else 0 for i in range(outputs.ndim))]
        along = line.reshape([-1 if i == axis else 1 for i in range(outputs.ndim)])
        if not (kind == along).all():
            continue
        ends = [*(np.flatnonzero(np.diff(line)) + 1), len(line)]
        joined = []
        for begin, end in zip([0, *ends], ends, strict=False):
            where = tuple(slice(begin, end) if i == axis else slice(None) for i in range(axis + 1))
            joined.append(_gathered(parts, outputs[where], first, part_of[where]))
        return Joined(tuple(joined), axis)
    return None


def _stacked(parts: Sequence[Weight], outputs: np.ndarray) -> Stored | None:
    """Each expert assembled alone, since arrays that its outputs share are its own."""
    each = len(parts) // len(outputs)
    made, before = [], 0
    for i, own in enumerate(outputs):
        some = parts[i * each : (i + 1) * each]
        made.append(assemble(some, own - before, experts=False))
        before += sum(part.outputs[0] for part in some)
    if len({jax.tree.structure(one) for one in made}) > 1:
        return None
    stacked: Stored | None = jax.tree.map(lambda *arrays: _stack(arrays), *made)
    if isinstance(stacked, Joined):
        return Joined(stacked.parts, stacked.axis + 1)
    return stacked


def _shared(part: Weight) -> list[str]:
    return [name for name in part.arrays if name not in part.scheme.trailing]


def _kind(part: Weight, index: int) -> Any:
    """Equal for parts that can be one Weight."""
    if _shared(part):
        return index
    arrays = tuple((n, a.shape[1:], np.dtype(a.dtype)) for n, a in sorted(part.arrays.items()))
    return part.scheme, part.rounding, arrays


def _gathered(
    parts: Sequence[Weight], outputs: np.ndarray, first: np.ndarray, part_of: np.ndarray
) -> Weight:
    """The outputs' rows of parts that are of one kind."""
    used = np.unique(part_of)
    rows = np.array([parts[i].outputs[0] for i in used])
    begins = np.concatenate([[0], np.cumsum(rows)[:-1]])
    place = np.zeros(len(parts), np.int64)
    place[used] = begins - first[used]
    wanted = outputs + place[part_of]
    whole = wanted.size == rows.sum() and bool((np.diff(wanted.reshape(-1)) == 1).all())
    model = parts[int(used[0])]
    arrays = dict(model.arrays)
    for name in model.scheme.trailing:
        if name in arrays:
            some = [parts[i].arrays[name] for i in used]
            arrays[name] = _take(some, wanted, whole)
    return Weight(arrays, model.scheme, model.rounding)


def _take(arrays: Sequence[Any], rows: np.ndarray, whole: bool) -> Any:
    shape = (*rows.shape, *arrays[0].shape[1:])
    if isinstance(arrays[0], jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(shape, arrays[0].dtype)
    # NumPy moves types that it doesn't know one element at a time.
    plain = [_integers(array) for array in arrays]
    joined = plain[0] if len(plain) == 1 else np.concatenate(plain)
    return (joined if whole else joined[rows]).reshape(shape).view(arrays[0].dtype)


def _stack(arrays: Sequence[Any]) -> Any:
    if isinstance(arrays[0], jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((len(arrays), *arrays[0].shape), arrays[0].dtype)
    return np.stack([_integers(array) for array in arrays]).view(arrays[0].dtype)


def _integers(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array


def widened_tensor(stored: Weight, shape: tuple[int, ...]) -> np.ndarray:
    """The floats that a stored tensor stands for, float32 in host memory.

    Args:
        shape: [out, in], or [X, in, out] where the inputs come first.
    """
    with jax.default_device(jax.devices("cpu")[0]):
        values = np.asarray(jax.jit(Weight.widen)(stored))
    if len(shape) == 2:
        return values
    experts, inputs, outputs = shape
    return values.reshape(experts, outputs, inputs).swapaxes(1, 2)
