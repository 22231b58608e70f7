"""Adapters of a model: the slots that the settings ask for, and the way from a folder to host
memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from checkpoints import Checkpoint
from checkpoints.adapters import Target, read_adapter, targets
from jaxserve.config import EngineConfig
from jaxserve.engine.device.adapters.adapter_layout import AdapterLayout, AdapterParts, Key
from jaxserve.engine.device.adapters.slot_writer import HostAdapter
from jaxserve.engine.device.layer_groups import LayerGroup
from jaxserve.engine.device.model_outline import ModelOutline
from jaxserve.errors import ConfigError
from jaxserve.models.weights import Stack, StackShape


def adapter_layout(
    config: EngineConfig, model: ModelOutline, dtype: jnp.dtype, on_cpu: bool
) -> AdapterLayout | None:
    """The adapter slots of a model; None without any.

    Raises:
        ConfigError: lora_targets names a module that the model doesn't have.
    """
    if not config.adapter_slots:
        return None
    abstract = jax.tree.unflatten(model.structure, model.shapes)
    variables: dict[Any, Any] = dict(nnx.to_flat_state(abstract))
    shapes = {}
    for target in chosen_targets(config, model):
        metadata = variables[target.path].get_metadata()
        axes, contracted = metadata["out_sharding"], metadata["contracted"]
        inputs = [len(axes) + i for i in contracted]
        outputs = [axis for i, axis in enumerate(axes) if i not in inputs]
        if axes[0] == "expert":
            outputs = outputs[1:]
        sides = axes[inputs[0]], tuple(outputs)
        if target.is_table:
            sides = axes[0], (axes[1],)
        shapes[target.key] = StackShape(
            rank=config.max_lora_rank,
            experts=len(target.modules),
            inputs=target.inputs,
            outputs=target.outputs,
            owner=target.owner,
            place=target.place,
            is_table=target.is_table,
            axes=sides,
            dtype=dtype,
            on_cpu=on_cpu,
        )
    return AdapterLayout(config.adapter_slots, shapes)


def chosen_targets(config: EngineConfig, model: ModelOutline) -> tuple[Target, ...]:
    """The matrices that adapters may change under these settings. Errors as adapter_layout()'s."""
    every = targets(model.config)
    if not config.lora_targets:
        return every
    known = sorted({name for target in every for name in target.names})
    for name in config.lora_targets:
        if name not in known:
            raise ConfigError(
                f"lora_targets names {name!r}; this model's modules are {', '.join(known)}"
            )
    return tuple(target for target in every if not target.names.isdisjoint(config.lora_targets))


@dataclass(frozen=True)
class AdapterLoader:
    """Reads adapters for a model that is served.

    Args:
        checkpoint: the model's.
        groups: its layer groups.
    """

    config: EngineConfig
    checkpoint: Checkpoint
    model: ModelOutline
    layout: AdapterLayout
    groups: Sequence[LayerGroup]

    def load(self, path: Path) -> HostAdapter:
        """Reads a folder in PEFT's format. It may be called in any thread.

        Raises:
            ModelError: as read_adapter().
        """
        rank = self.config.max_lora_rank
        adapter = read_adapter(path, self._targets, self.checkpoint, rank)
        keys = self.layout.parts(self.groups)

        def stack(key: Key) -> Stack:
            parts = adapter.parts.get(key)
            if parts is None:
                return self._nothing[key]
            return self._placed(self.layout.shapes[key].packed(parts))

        parts = AdapterParts(
            list(map(stack, keys.outer)), [list(map(stack, group)) for group in keys.groups]
        )
        return HostAdapter(adapter.digest, adapter.rank, parts)

    @cached_property
    def _targets(self) -> tuple[Target, ...]:
        return chosen_targets(self.config, self.model)

    @cached_property
    def _nothing(self) -> dict[Key, Stack]:
        """What adapters have of a matrix that they don't change; equal ones are the same."""
        made: dict[str, Stack] = {}
        found = {}
        for key, shape in self.layout.shapes.items():
            kind = str(shape.shapes(1))
            if kind not in made:
                made[kind] = self._placed(shape.packed([()] * shape.experts))
            found[key] = made[kind]
        return found

    def _placed(self, stack: Stack) -> Stack:
        """Where the device is the processor, host memory is the device's: nothing is copied when
        the adapter gets a slot."""
        if jax.default_backend() != "cpu":
            return stack
        placed: Stack = jax.device_put(stack)
        return placed
