"""Matrices in the order in which the CPU kernels read them, in the form that they are stored in."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxserve.models.weights.inputs import InputRounding
from jaxserve.models.weights.weight import Joined, Plain, Stored, Weight

if TYPE_CHECKING:
    from cpu_kernels import Columns


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PackedPart:
    """A matrix [*O, I], or one an expert.

    Args:
        columns: of [O, I]; with experts, each array begins with their dimension.
        outputs: the dimensions O, the experts' first.
        input_scale: of the rounding, where it is static; with experts one each.
        rounding: how inputs are rounded before they are multiplied; None leaves them.
    """

    columns: Columns
    outputs: tuple[int, ...] = field(metadata={"static": True})
    input_scale: Any = None
    rounding: InputRounding | None = field(default=None, metadata={"static": True})

    def product(self, x: jax.Array, expert: jax.Array | None) -> jax.Array:  # [T, I] -> [T, O]
        import cpu_kernels

        if self.rounding is not None:
            scale = self.input_scale
            chosen = scale is not None and expert is not None
            x = self.rounding.round(x, scale[expert] if chosen else scale)
        return cpu_kernels.packed_linear(x.astype(jnp.float32), self.columns, expert)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Packed:
    """Matrices [*O, I] joined along a dimension of O, mostly one alone."""

    parts: tuple[PackedPart, ...]
    axis: int = field(metadata={"static": True})

    @property
    def outputs(self) -> tuple[int, ...]:
        """The dimensions O."""
        sizes = list(self.parts[0].outputs)
        sizes[self.axis] = sum(part.outputs[self.axis] for part in self.parts)
        return tuple(sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        """[*O, I]."""
        return (*self.outputs, self.parts[0].columns.inputs)

    def product(self, x: jax.Array, expert: jax.Array | None = None) -> jax.Array:
        """x [T, I] @ the matrix, or an expert's, in float32: [T, *O] without the experts'."""
        first = 0 if expert is None else 1
        products = [
            part.product(x, expert).reshape(len(x), *part.outputs[first:]) for part in self.parts
        ]
        return (
            products[0] if len(products) == 1 else jnp.concatenate(products, self.axis + 1 - first)
        )

    def rows(self, outputs: jax.Array) -> jax.Array:
        """The rows [N, I] float32 of some outputs [N], where O is one dimension."""
        (part,) = self.parts
        return part.columns.rows(outputs)


@partial(jax.jit, static_argnames=("contracted", "experts"))
def pack(
    matrix: jax.Array | Stored, contracted: tuple[int, ...], experts: bool = False
) -> Packed | None:
    """A parameter as the CPU kernels read it; None where they can't read its form.

    Args:
        matrix: a stored form, or floats.
        contracted: which of the floats' dimensions are the inputs', from the last.
        experts: whether the first dimension is the experts'.
    """
    if not isinstance(matrix, Stored):
        matrix = Weight({"values": _outputs_first(matrix, contracted)}, Plain())
    joined = matrix if isinstance(matrix, Joined) else Joined((matrix,), 0)
    parts = [_part(part, experts) for part in joined.parts]
    if any(part is None for part in parts):
        return None
    return Packed(tuple(part for part in parts if part is not None), joined.axis)


def _outputs_first(values: jax.Array, contracted: tuple[int, ...]) -> jax.Array:
    """Floats as [*O, I]."""
    places = range(values.ndim - len(contracted), values.ndim)
    moved = jnp.moveaxis(values, contracted, places)
    return moved.reshape(*moved.shape[: places.start], -1)


def _part(weight: Weight, experts: bool) -> PackedPart | None:
    lead, outputs = int(experts), weight.outputs
    count = math.prod(outputs[lead:])
    own = {
        name: array.reshape(*outputs[:lead], count, *array.shape[len(outputs) :])
        for name, array in weight.arrays.items()
        if name in weight.scheme.trailing
    }
    shared = {n: a for n, a in weight.arrays.items() if n not in own and n != "input_scale"}

    def columns(arrays: dict[str, jax.Array], shared: dict[str, jax.Array]) -> Columns | None:
        return weight.scheme.columns(arrays | shared)

    found = jax.vmap(columns)(own, shared) if experts else columns(own, shared)
    if found is None:
        return None
    return PackedPart(found, outputs, weight.arrays.get("input_scale"), weight.rounding)
