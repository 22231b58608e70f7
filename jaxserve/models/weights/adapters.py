"""Low-rank adapters (LoRA, Hu et al. 2021) on a matrix: several at once, each row with its own.

Adapters lie in slots, stacked in arrays. A batch names the slot of each of its rows; the number of
slots means none. Of an expert matrix each expert has its own pair of matrices in every slot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class LowRank(NamedTuple):
    """What an adapter adds to one matrix: up @ down, float32, its scale included.

    Args:
        down: [r, I].
        up: [O, r].
    """

    down: np.ndarray
    up: np.ndarray


class AdapterRows(NamedTuple):
    """The adapter slots of a batch's rows, int32.

    Args:
        slots: [T].
        order: [T], the rows in the order of their slots.
        ordered: [T], the slots of these.
    """

    slots: jax.Array
    order: jax.Array
    ordered: jax.Array

    @classmethod
    def of(cls, slots: jax.Array) -> AdapterRows:
        """Rows with these slots [T]."""
        order = jnp.argsort(slots, stable=True).astype(jnp.int32)
        return cls(slots, order, slots[order])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stack:
    """The adapters of one matrix [*O, I], or of the same matrix of E experts, in N slots.

    On a CPU `down` and `up` are what cpu_kernels.adapt takes, with spans and touched; G is N times
    E. Elsewhere down is [G, I, R] and up [G, R, *O].

    Args:
        table: [N, V, R], in place of `down`, of a table whose rows are taken; else None.
    """

    down: Any
    up: Any
    spans: Any = None
    touched: Any = None
    table: Any = None
    experts: int = field(default=1, metadata={"static": True})

    @property
    def slots(self) -> int:
        """N."""
        return int(self.up.shape[0]) // self.experts

    def add(self, y: jax.Array, x: jax.Array, rows: AdapterRows) -> jax.Array:
        """y [T, *O] and the adapters' products with x [T, *I]; rows name groups, if there are
        experts."""
        low = x.reshape(len(x), -1)
        product = y.reshape(len(y), -1)
        if self.spans is not None:
            import cpu_kernels

            out = cpu_kernels.adapt(
                product.astype(jnp.float32),
                low.astype(jnp.float32),
                rows.order,
                rows.ordered,
                self.down,
                self.up,
                self.spans,
                self.touched,
            )
            return out.astype(y.dtype).reshape(y.shape)
        groups = len(self.up)
        sizes = jnp.bincount(rows.ordered, length=groups)
        low = low[rows.order]
        if self.table is None:
            low = lax.ragged_dot(low, self.down, sizes)
        up = self.up.reshape(*self.up.shape[:2], -1)
        added = lax.ragged_dot(low, up, sizes, preferred_element_type=jnp.float32)
        added = jnp.where(rows.ordered[:, None] < groups, added, 0)
        back = jnp.zeros_like(rows.order).at[rows.order].set(jnp.arange(len(x), dtype=jnp.int32))
        return (product + added[back]).astype(y.dtype).reshape(y.shape)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Adapted:
    """A matrix, and the adapters of the batch's rows on it."""

    base: Any
    stack: Stack
    rows: AdapterRows

    @property
    def shape(self) -> tuple[int, ...]:
        """The matrix's."""
        shape: tuple[int, ...] = self.base.shape
        return shape

    def reordered(self, rows: jax.Array) -> Adapted:
        """The same for other rows [R], given by their numbers in the batch. Only the products of
        experts take it."""
        slots = self.rows.slots[rows]
        return Adapted(self.base, self.stack, AdapterRows(slots, slots, slots))

    def of_experts(self, experts: jax.Array) -> AdapterRows:
        """The groups of rows whose expert this is, one for all or [R]."""
        stack, slots = self.stack, self.rows.slots
        groups = slots * stack.experts + experts.astype(jnp.int32)
        return AdapterRows.of(jnp.where(slots < stack.slots, groups, len(stack.up)))

    def taken(self, ids: jax.Array) -> jax.Array:
        """What the adapters have of rows [T] of a table: [T, R]."""
        slots = jnp.minimum(self.rows.slots, self.stack.slots - 1)
        low: jax.Array = self.stack.table[slots, ids]
        return low


def for_rows(weight: Any, rows: jax.Array) -> Any:
    """A matrix for rows [R] of the batch, in this order; only one with adapters changes."""
    return weight.reordered(rows) if isinstance(weight, Adapted) else weight
