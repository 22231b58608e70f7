"""How parameters are placed on a mesh of devices: maps logical axes to mesh axes, here alone."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# Attention is sharded by kv heads, each with its group of query heads. Axes that aren't listed are
# replicated.
MESH_AXES: Mapping[str, str] = {
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "vocab": "tensor",
    "expert": "expert",
}

Shardings = Mapping[tuple[Hashable, ...], NamedSharding]


def shardings(parameters: nnx.State[Any, Any], mesh: Mesh) -> Shardings:
    """Parameter path -> sharding, by the logical axes that each parameter names.

    Args:
        parameters: a model's, abstract or not.
        mesh: its axes whose names aren't in MESH_AXES' values shard nothing.
    """
    return {
        path: _sharding(variable.get_metadata("out_sharding"), variable.shape, mesh)
        for path, variable in nnx.to_flat_state(parameters)
    }


def _sharding(axes: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    spec: list[str | None] = []
    for name, size in zip(axes, shape, strict=True):
        axis = MESH_AXES.get(name or "")
        # A dimension that the axis doesn't divide evenly is replicated.
        fits = axis in mesh.shape and axis not in spec and size % mesh.shape[axis] == 0
        spec.append(axis if fits else None)
    return NamedSharding(mesh, PartitionSpec(*spec))
