"""AdapterLayout: the stacks of a model's adapter slots, in the parts that its programs take."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import jax

from jaxserve.engine.device.layer_groups import LayerGroup
from jaxserve.models.weights import Stack, StackShape

Path = tuple[Hashable, ...]
Key = tuple[Path, bool]  # a parameter, and whether it is the table whose rows are taken
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class AdapterParts(Generic[Item]):
    """Something of each adapted matrix, in the parts that the programs take.

    Args:
        outer: of those in no layer, in order.
        groups: of those in each layer group, in the order of its layers.
    """

    outer: list[Item]
    groups: list[list[Item]]

    def flat(self) -> list[Item]:
        """All of them."""
        return [*self.outer, *(item for group in self.groups for item in group)]


@dataclass(frozen=True)
class AdapterLayout:
    """Which matrices adapters may change here, and what their slots take.

    Args:
        slots: adapters on the device at once.
        shapes: of each matrix; those of a layer in the same order in every layer.
    """

    slots: int
    shapes: Mapping[Key, StackShape]

    @cached_property
    def outer(self) -> tuple[Key, ...]:
        """The matrices that are in no layer: of the embedding and the head."""
        return tuple(key for key in self.shapes if key[0][0] != "layers")

    def of_group(self, group: LayerGroup) -> tuple[Key, ...]:
        """The matrices of a layer group, in the order of its layers."""
        return tuple(
            key
            for layer in group.layers
            for key in self.shapes
            if key[0][0] == "layers" and key[0][1] == layer
        )

    def parts(self, groups: Iterable[LayerGroup]) -> AdapterParts[Key]:
        """All matrices, in parts."""
        return AdapterParts(list(self.outer), [list(self.of_group(group)) for group in groups])

    @cached_property
    def tables(self) -> tuple[Key, ...]:
        """The embedding, if adapters may change it."""
        return tuple(key for key in self.outer if key[1])

    @cached_property
    def head(self) -> tuple[Key, ...]:
        """The output head, if adapters may change it."""
        return tuple(key for key in self.outer if not key[1])

    @property
    def nbytes(self) -> int:
        """Bytes of the slots on the device."""
        leaves = jax.tree.leaves([shape.shapes(self.slots) for shape in self.shapes.values()])
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)

    def stacks(self, keys: Sequence[Key], leaves: Sequence[Any]) -> dict[Key, Stack]:
        """The stacks of some matrices, from the leaves of all of them in order."""
        structure = jax.tree.structure([self.shapes[key].shapes(self.slots) for key in keys])
        return dict(zip(keys, jax.tree.unflatten(structure, leaves), strict=True))

    def leaf_shapes(self, keys: Sequence[Key]) -> list[Any]:
        """Shapes of the leaves of some matrices' stacks."""
        return jax.tree.leaves([self.shapes[key].shapes(self.slots) for key in keys])
