"""StepModel: the model as a step's programs compute it, with adapters or without."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxserve.engine.device.adapters.adapter_layout import AdapterLayout, Key
from jaxserve.engine.device.layer_groups import LayerGroup, SplitModel, SplitParams
from jaxserve.models.decoder import Decoder
from jaxserve.models.weights import AdapterRows


@dataclass(frozen=True, slots=True)
class StepModel:
    """Makes the model's parts from the arguments of a program.

    Args:
        adapters: None in programs without adapters.
    """

    model: SplitModel
    adapters: AdapterLayout | None = None

    @property
    def slots(self) -> int:
        """Adapter slots."""
        return 0 if self.adapters is None else self.adapters.slots

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """Tells programs with adapters from those without, and from those of other slots."""
        if self.adapters is None:
            return ()
        keys = self.adapters.parts(self.model.groups).flat()
        return ("adapters", *((k, str(self.adapters.leaf_shapes([k]))) for k in keys))

    @property
    def head_identity(self) -> tuple[Hashable, ...]:
        """As identity, of the programs that use the head."""
        return self.identity if self.adapters is not None and self.adapters.head else ()

    def shapes(self) -> SplitParams:
        """Shapes of what the programs take as parameters."""
        params = self.model.split_params(self.model.shapes)
        if self.adapters is None:
            return params
        leaves = self.adapters.leaf_shapes
        return SplitParams(
            [*params.outer, *leaves(self.adapters.tables)],
            [
                [*own, *leaves(self.adapters.of_group(group))]
                for group, own in zip(self.model.groups, params.groups, strict=True)
            ],
            [*params.outer, *leaves(self.adapters.head)],
        )

    def embedding(self, leaves: Sequence[Any], rows: AdapterRows | None) -> Decoder:
        """The model from SplitParams.outer; rows are those whose tokens are embedded."""
        tables = () if self.adapters is None else self.adapters.tables
        return self._merge(self.model.outer, leaves, tables, rows)

    def layers(self, group: LayerGroup, leaves: Sequence[Any], rows: AdapterRows | None) -> Decoder:
        """The model from a group's entry of SplitParams.groups."""
        keys = () if self.adapters is None else self.adapters.of_group(group)
        return self._merge(group.leaves, leaves, keys, rows)

    def head(self, leaves: Sequence[Any], slots: jax.Array) -> Decoder:
        """The model from SplitParams.head.

        Args:
            slots: [R], the adapter slots of the rows whose logits are wanted.
        """
        if self.adapters is None or not self.adapters.head:
            return self.model.merge(self.model.outer, leaves)
        return self._merge(self.model.outer, leaves, self.adapters.head, AdapterRows.of(slots))

    def _merge(
        self,
        indices: tuple[int, ...],
        leaves: Sequence[Any],
        keys: tuple[Key, ...],
        rows: AdapterRows | None,
    ) -> Decoder:
        if not keys:
            return self.model.merge(indices, leaves)
        assert self.adapters is not None
        count = len(indices)
        stacks = self.adapters.stacks(keys, leaves[count:])
        adapters = {path: (stack, rows) for (path, _), stack in stacks.items()}
        return self.model.merge(indices, leaves[:count], adapters)
