"""Reads a checkpoint's parameters on to the device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from tqdm import tqdm

from checkpoints import Checkpoint
from jaxserve.engine.device.model_outline import ModelOutline, is_of_experts
from jaxserve.engine.startup.stored_forms import as_planned
from jaxserve.errors import CheckpointError
from jaxserve.models.sharding import shardings
from jaxserve.models.weights import Packed, is_finite, nbytes, pack


def load_parameters(
    checkpoint: Checkpoint,
    model: ModelOutline,
    dtype: jnp.dtype,
    progress: bool,
    mesh: Mesh | None = None,
) -> list[jax.Array]:
    """Reads every parameter of a checkpoint, cast to dtype, in the order of `model.shapes`.

    Args:
        mesh: the devices to place the parameters on (see models/sharding.py); None: one device.

    Raises:
        CheckpointError: it is damaged, or doesn't match its config.
    """
    abstract = jax.tree.unflatten(model.structure, model.shapes)
    flat = nnx.to_flat_state(abstract)
    places = None if mesh is None else shardings(abstract, mesh)
    filled, finite = {}, {}
    with tqdm(
        desc="load", unit="B", unit_scale=True, disable=not progress, total=model.nbytes
    ) as bar:
        for path, expected in flat:
            name, form = checkpoint.describe(path), expected.get_value()
            value: Any
            if (stored := model.forms.get(path)) is not None:
                value = as_planned(checkpoint.stored_parameter(path, places), stored)
            else:
                value = checkpoint.parameter(path, places)
            if isinstance(form, Packed):
                # The device casts faster than NumPy.
                value = jax.tree.map(jnp.asarray, value)
                if stored is None:
                    value = value.astype(form.parts[0].columns.arrays["codes"].dtype)
                finite[name] = is_finite(value)
                contracted = expected.get_metadata("contracted")
                array = pack(value, contracted, is_of_experts(expected))
                _check_shapes(checkpoint, name, array, form)
            else:
                _check_shapes(checkpoint, name, value, form)
                if places is not None:
                    value = jax.device_put(value, places[path])
                array = jax.tree.map(lambda a, to: jnp.asarray(a).astype(to.dtype), value, form)
                finite[name] = is_finite(array)
            filled[path] = expected.replace(array)
            bar.update(nbytes(array))
    for name, good in finite.items():
        if not good:
            raise CheckpointError(
                f"{checkpoint.path}: NaN or infinite values in {name} (as {dtype.name})"
            )
    leaves: list[jax.Array] = jax.tree.leaves(nnx.from_flat_state(filled))
    return leaves


def _check_shapes(checkpoint: Checkpoint, name: str, value: Any, expected: Any) -> None:
    found, wanted = [value], [expected]
    if not isinstance(expected, Packed):
        found, wanted = jax.tree.leaves(value), jax.tree.leaves(expected)
    for array, form in zip(found, wanted, strict=True):
        if array.shape != form.shape:
            raise CheckpointError(
                f"{checkpoint.path}: {name} has shape {list(array.shape)} where the config "
                f"asks for {list(form.shape)}; the checkpoint and its config don't match"
            )
