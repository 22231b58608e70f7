"""A matrix in the form that a checkpoint keeps it in: its scheme and its arrays, a pytree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp

from jaxserve.models.weights.inputs import InputRounding

if TYPE_CHECKING:
    from cpu_kernels import Columns


class Scheme(Protocol):
    """How numbers are stored. Implementations are frozen dataclasses, part of a program's identity.

    A matrix [*O, I] maps I inputs to O outputs. Each output's numbers are kept apart from the
    others', so that outputs can be reordered, joined and cut without a look at them.
    """

    @property
    def trailing(self) -> Mapping[str, int]:
        """The arrays that belong to each output, and their dimensions after O; the first of these
        goes along the inputs."""
        ...

    def inputs(self, arrays: Mapping[str, Any]) -> int:
        """I."""
        ...

    def widen(self, arrays: Mapping[str, jax.Array]) -> jax.Array:
        """The numbers [*O, I] in float32, exactly as the format defines them."""
        ...

    def columns(self, arrays: Mapping[str, jax.Array]) -> Columns | None:
        """A matrix [O, I] as the CPU kernels read it, with the same numbers; None where they can't
        read the form."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Weight:
    """A stored matrix [*O, I].

    Args:
        arrays: those of the scheme's `trailing`, which begin with the dimensions O, and others
            that all outputs share; of experts, those have the experts' dimension alone.
        rounding: how its inputs are rounded before they are multiplied; None leaves them.
    """

    arrays: dict[str, Any]
    scheme: Scheme = field(metadata={"static": True})
    rounding: InputRounding | None = field(default=None, metadata={"static": True})

    @property
    def outputs(self) -> tuple[int, ...]:
        """The dimensions O."""
        name, trailing = next(iter(self.scheme.trailing.items()))
        shape: tuple[int, ...] = self.arrays[name].shape
        return shape[: len(shape) - trailing]

    @property
    def shape(self) -> tuple[int, ...]:
        """[*O, I]."""
        return (*self.outputs, self.scheme.inputs(self.arrays))

    def __getitem__(self, expert: jax.Array) -> Weight:
        """One expert's, where the first dimension is the experts'."""
        return Weight({n: a[expert] for n, a in self.arrays.items()}, self.scheme, self.rounding)

    def rows(self, outputs: jax.Array) -> Weight:
        """The rows of some outputs [N], where O is one dimension."""
        chosen = {n: self.arrays[n][outputs] for n in self.scheme.trailing if n in self.arrays}
        return Weight(self.arrays | chosen, self.scheme, self.rounding)

    def widen(self) -> jax.Array:
        """The numbers [*O, I] in float32."""
        return self.scheme.widen(self.arrays)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Joined:
    """Matrices with the same inputs, of different schemes, joined along a dimension of O."""

    parts: tuple[Weight, ...]
    axis: int = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """[*O, I]."""
        shape = list(self.parts[0].shape)
        shape[self.axis] = sum(part.shape[self.axis] for part in self.parts)
        return tuple(shape)

    def __getitem__(self, expert: jax.Array) -> Joined:
        """One expert's, where the first dimension is the experts' and isn't the joined one."""
        return Joined(tuple(part[expert] for part in self.parts), self.axis - 1)


Stored: TypeAlias = Weight | Joined
Matrix: TypeAlias = jax.Array | Stored


@dataclass(frozen=True)
class Plain:
    """Floats, where a Weight is needed: beside parts of another scheme, or with rounded inputs."""

    @property
    def trailing(self) -> Mapping[str, int]:
        return {"values": 1}

    def inputs(self, arrays: Mapping[str, Any]) -> int:
        return int(arrays["values"].shape[-1])

    def widen(self, arrays: Mapping[str, jax.Array]) -> jax.Array:
        return arrays["values"].astype(jnp.float32)

    def columns(self, arrays: Mapping[str, jax.Array]) -> Columns:
        from cpu_kernels import pack

        return pack(arrays["values"])


def widened(weight: Matrix, dtype: jnp.dtype) -> jax.Array:
    """The numbers of a matrix in this type; a stored one's are [*O, I]."""
    if isinstance(weight, Joined):
        return jnp.concatenate([widened(part, dtype) for part in weight.parts], weight.axis)
    if isinstance(weight, Weight):
        return weight.widen().astype(dtype)
    return weight.astype(dtype)


@jax.jit
def is_finite(weight: Matrix) -> jax.Array:
    """Whether all numbers of a matrix are finite, a bool."""
    if isinstance(weight, Joined):
        return jnp.stack([is_finite(part) for part in weight.parts]).all()
    values = weight.widen() if isinstance(weight, Weight) else weight
    return jnp.isfinite(values).all()


def nbytes(weight: Any) -> int:
    """Bytes of a matrix's arrays."""
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in jax.tree.leaves(weight))
