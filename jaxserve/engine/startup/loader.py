"""Reads a checkpoint's parameters on to the device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from tqdm import tqdm

from checkpoints import Checkpoint
from jaxserve.engine.device.model_outline import ModelOutline
from jaxserve.errors import CheckpointError
from jaxserve.models.sharding import shardings


def load_parameters(
    checkpoint: Checkpoint,
    model: ModelOutline,
    dtype: jnp.dtype,
    progress: bool,
    mesh: Mesh | None = None,
) -> list[jax.Array]:
    """Reads every parameter of a checkpoint, cast to dtype, in the order of `model.shapes`.

    Args:
        mesh: where the parameters shall lie (see models/sharding.py); None is one device.

    Raises:
        CheckpointError: it is damaged, or isn't what its config says.
    """
    abstract = jax.tree.unflatten(model.structure, model.shapes)
    flat = nnx.to_flat_state(abstract)
    places = None if mesh is None else shardings(abstract, mesh)
    filled, finite = {}, {}
    with tqdm(
        desc="load", unit="B", unit_scale=True, disable=not progress, total=model.nbytes
    ) as bar:
        for parameter_path, expected in flat:
            name = checkpoint.describe(parameter_path)
            value = checkpoint.parameter(parameter_path, places)
            if value.shape != expected.shape:
                raise CheckpointError(
                    f"{checkpoint.path}: {name} has shape {list(value.shape)} where the config "
                    f"asks for {list(expected.shape)}; the checkpoint and its config don't match"
                )
            if places is not None:
                value = jax.device_put(value, places[parameter_path])
            array = jnp.asarray(value).astype(dtype)  # the device casts faster than NumPy
            finite[name] = jnp.isfinite(array).all()
            filled[parameter_path] = expected.replace(array)
            bar.update(array.nbytes)
    for name, good in finite.items():
        if not good:
            raise CheckpointError(
                f"{checkpoint.path}: NaN or infinite values in {name} (as {dtype.name})"
            )
    leaves: list[jax.Array] = jax.tree.leaves(nnx.from_flat_state(filled))
    return leaves
