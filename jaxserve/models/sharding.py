"""How parameters are placed on a mesh of devices: maps logical axes to mesh axes, here alone."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxserve.models.weights import Joined, Stack, StackShape, Stored

# Attention is sharded by kv heads, each with its group of query heads. Axes that aren't listed are
# replicated.
MESH_AXES: Mapping[str, str] = {
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "vocab": "tensor",
    "expert": "expert",
}

# Of each parameter; of a stored one a tree with a sharding an array.
Shardings = Mapping[tuple[Hashable, ...], Any]


def shardings(parameters: nnx.State[Any, Any], mesh: Mesh) -> Shardings:
    """Parameter path -> sharding, by the logical axes that each parameter names.

    Args:
        parameters: a model's, abstract or not.
        mesh: axes of other names than MESH_AXES' values cut nothing.
    """
    found: dict[tuple[Hashable, ...], Any] = {}
    for path, variable in nnx.to_flat_state(parameters):
        axes, value = variable.get_metadata("out_sharding"), variable.get_value()
        if isinstance(value, Stored):
            contracted = variable.get_metadata("contracted")
            found[path] = jax.tree.unflatten(
                jax.tree.structure(value), _of_arrays(value, stored_axes(axes, contracted), mesh)
            )
        else:
            found[path] = _sharding(axes, variable.shape, mesh)
    return found


def stack_shardings(shape: StackShape, slots: int, mesh: Mesh) -> Stack:
    """The shardings of a matrix's adapter slots, as they lie where there are no CPU kernels: cut
    along the inputs and outputs along which the matrix is cut, never along the rank."""
    arrays = shape.shapes(slots)
    inputs, outputs = shape.axes
    down: tuple[str | None, ...] = (None, None if shape.is_table else inputs, None)
    up = _sharding((None, None, *outputs), arrays.up.shape, mesh)
    table = None
    if arrays.table is not None:
        table = _sharding((None, inputs, None), arrays.table.shape, mesh)
    return Stack(_sharding(down, arrays.down.shape, mesh), up, table=table, experts=shape.experts)


def stored_axes(
    axes: tuple[str | None, ...], contracted: tuple[int, ...]
) -> tuple[str | None, ...]:
    """The axes of a stored matrix [*O, I], given a parameter's and which of them are inputs."""
    inputs = [len(axes) + i for i in contracted]
    outputs = [axis for i, axis in enumerate(axes) if i not in inputs]
    return (*outputs, axes[inputs[0]])


def _of_arrays(stored: Stored, axes: tuple[str | None, ...], mesh: Mesh) -> list[NamedSharding]:
    """Shardings in the order of the leaves."""
    if isinstance(stored, Joined):
        return [sharding for part in stored.parts for sharding in _of_arrays(part, axes, mesh)]
    found = []
    for name, array in sorted(stored.arrays.items()):
        own: tuple[str | None, ...]
        if name in stored.scheme.trailing:
            own = (*axes, *[None] * (len(array.shape) - len(axes)))
        else:
            own = (None,) * len(array.shape)
        found.append(_sharding(own, array.shape, mesh))
    return found


def _sharding(axes: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    spec: list[str | None] = []
    for name, size in zip(axes, shape, strict=True):
        axis = MESH_AXES.get(name or "")
        # A dimension that the axis doesn't divide evenly is replicated.
        fits = axis in mesh.shape and axis not in spec and size % mesh.shape[axis] == 0
        spec.append(axis if fits else None)
    return NamedSharding(mesh, PartitionSpec(*spec))
