"""Matrices of floats in the order in which the CPU kernels read them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Packed:
    """A matrix [*O, I] of float32 whose outputs lie in groups of C, as cpu_kernels.pack has them.

    Args:
        columns: [N, I, C]; C depends on the processor.
        outputs: the dimensions O.
    """

    columns: Any
    outputs: tuple[int, ...] = field(metadata={"static": True})

    @classmethod
    def of(cls, kernel: jax.Array, outputs: tuple[int, ...]) -> Packed:
        """A matrix [*O, *I], packed; its memory is given back."""
        return cls(_pack(kernel, math.prod(outputs)), outputs)

    @property
    def shape(self) -> tuple[int, ...]:
        """[*O, I]."""
        return (*self.outputs, int(self.columns.shape[1]))

    def rows(self, outputs: jax.Array) -> jax.Array:
        """The rows [N, I] of some outputs [N], where O is one dimension."""
        group, column = outputs // self.columns.shape[2], outputs % self.columns.shape[2]
        chosen: jax.Array = self.columns[group, :, column]
        return chosen


@partial(jax.jit, static_argnums=1)
def _pack(kernel: jax.Array, outputs: int) -> jax.Array:
    import cpu_kernels

    return cpu_kernels.pack(kernel.reshape(outputs, -1))
