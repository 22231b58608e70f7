"""SlotWriter: the adapter slots on the device, and the programs that write one adapter into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.stages import Compiled

from jaxserve.engine.device.adapters.adapter_layout import AdapterLayout, AdapterParts, Key
from jaxserve.engine.device.layer_groups import LayerGroup, SplitParams
from jaxserve.models.weights import Stack


@dataclass(frozen=True, eq=False)
class HostAdapter:
    """One adapter in host memory, as it lies in a slot.

    Args:
        digest: of its content.
        rank: its largest.
        parts: of each matrix.
    """

    digest: bytes
    rank: int
    parts: AdapterParts[Stack]


class SlotWriter:
    """The stacks of all slots.

    Args:
        groups: the model's layer groups.
        params: the model's parameters.
    """

    def __init__(
        self, layout: AdapterLayout, groups: Sequence[LayerGroup], params: SplitParams
    ) -> None:
        self._layout, self._base = layout, params
        self._keys = layout.parts(groups)
        self._joined: SplitParams | None = None
        self._stacks = self._empty()
        compiled: dict[Any, Compiled] = {}
        slot = jax.ShapeDtypeStruct((), jnp.int32)
        programs = []
        for stacks, keys in zip(self._all(), self._all_keys(), strict=True):
            shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), stacks)
            new = [self._one_slot(key) for key in keys]
            leaves, structure = jax.tree.flatten((shapes, new))
            own = (structure, tuple((leaf.shape, leaf.dtype.name) for leaf in leaves))
            if own not in compiled:
                job = jax.jit(_write, donate_argnums=0).lower(shapes, new, slot)
                compiled[own] = job.compile()
            programs.append(compiled[own])
        self._programs = programs

    @property
    def slots(self) -> int:
        """How many there are."""
        return self._layout.slots

    @property
    def params(self) -> SplitParams:
        """The model's parameters and the stacks, as the programs with adapters take them."""
        if self._joined is None:
            self._joined = self._join()
        return self._joined

    def _join(self) -> SplitParams:
        base, stacks = self._base, self._stacks
        outer = dict(zip(self._keys.outer, stacks.outer, strict=True))
        tables, head = ([outer[k] for k in own] for own in (self._layout.tables, self._layout.head))
        return SplitParams(
            [*base.outer, *jax.tree.leaves(tables)],
            [
                [*own, *jax.tree.leaves(theirs)]
                for own, theirs in zip(base.groups, stacks.groups, strict=True)
            ],
            [*base.outer, *jax.tree.leaves(head)],
        )

    def write(self, slot: int, adapter: HostAdapter) -> None:
        """Writes an adapter into a slot. Doesn't wait for the device; steps that are dispatched
        already read what was there before."""
        number = np.int32(slot)
        stacks = self._all()
        new = [adapter.parts.outer, *adapter.parts.groups]
        written = [
            program(own, theirs, number)
            for program, own, theirs in zip(self._programs, stacks, new, strict=True)
        ]
        self._stacks, self._joined = AdapterParts(written[0], written[1:]), None

    def warm_up(self) -> None:
        """Writes zeros into a slot."""
        keys = self._keys
        zeros = [[_zeros(self._one_slot(key)) for key in own] for own in self._all_keys()]
        assert len(zeros) == 1 + len(keys.groups)
        self.write(0, HostAdapter(b"", 0, AdapterParts(zeros[0], zeros[1:])))

    def reset(self) -> None:
        """Makes empty slots in place of those that were lost with a failed write."""
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(self._stacks.flat())):
            for leaf in jax.tree.leaves(self._stacks.flat()):
                leaf.delete()
            self._stacks, self._joined = self._empty(), None

    def _empty(self) -> AdapterParts[Stack]:
        shapes, slots = self._layout.shapes, self._layout.slots
        return AdapterParts(
            [shapes[key].zeros(slots) for key in self._keys.outer],
            [[shapes[key].zeros(slots) for key in group] for group in self._keys.groups],
        )

    def _all(self) -> list[list[Stack]]:
        return [self._stacks.outer, *self._stacks.groups]

    def _all_keys(self) -> list[list[Key]]:
        return [self._keys.outer, *self._keys.groups]

    def _one_slot(self, key: Key) -> Stack:
        one = self._layout.shapes[key].shapes(1)
        return Stack(one.down, one.up, one.spans, None, one.table, one.experts)


def _zeros(shapes: Stack) -> Stack:
    made: Stack = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)
    return made


def _write(stacks: list[Stack], new: list[Stack], slot: jax.Array) -> list[Stack]:
    def put(whole: Any, part: Any, groups: int) -> Any:
        if whole is None:
            return None
        return lax.dynamic_update_slice_in_dim(whole, part, slot * groups, 0)

    return [
        Stack(
            put(stack.down, own.down, stack.experts),
            put(stack.up, own.up, stack.experts),
            put(stack.spans, own.spans, stack.experts),
            stack.touched,
            put(stack.table, own.table, 1),
            stack.experts,
        )
        for stack, own in zip(stacks, new, strict=True)
    ]
