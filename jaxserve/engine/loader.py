"""From a checkpoint on disk to a model's parameters on the device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from tqdm import tqdm

from checkpoints import open_checkpoint
from jaxserve.errors import CheckpointError
from jaxserve.models.cache import CacheSpec
from jaxserve.models.config import ModelConfig
from jaxserve.models.registry import model_class
from jaxserve.models.sharding import shardings


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model split once: its graph, and its parameters as a flat list of leaves."""

    config: ModelConfig
    graphdef: nnx.GraphDef
    structure: jax.tree_util.PyTreeDef
    leaves: list[jax.Array]
    cache_specs: tuple[CacheSpec, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the parameters."""
        return sum(leaf.nbytes for leaf in self.leaves)


def load_model(
    path: Path,
    dtype: jnp.dtype,
    progress: bool,
    max_model_len: int | None = None,
    mesh: Mesh | None = None,
) -> LoadedModel:
    """Reads every parameter of the checkpoint at path, cast to dtype.

    Args:
        max_model_len: the context that will be served, where that is less than the model's own.
        mesh: where the parameters shall lie (see models/sharding.py); None is one device.

    Raises:
        ModelError: the checkpoint is missing, damaged, or of an architecture we don't have.
    """
    checkpoint = open_checkpoint(path)
    context = checkpoint.config.max_position_embeddings
    config = replace(
        checkpoint.config, max_position_embeddings=min(max_model_len or context, context)
    )
    cls = model_class(config.architecture)
    model = nnx.eval_shape(lambda: cls(config, dtype))
    graphdef, abstract = nnx.split(model)
    flat = nnx.to_flat_state(abstract)
    places = None if mesh is None else shardings(abstract, mesh)
    filled, finite = {}, {}
    with tqdm(
        desc="load",
        unit="B",
        unit_scale=True,
        disable=not progress,
        total=sum(expected.size for _, expected in flat) * dtype.itemsize,
    ) as bar:
        for parameter_path, expected in flat:
            name = checkpoint.describe(parameter_path)
            value = checkpoint.parameter(parameter_path, places)
            if value.shape != expected.shape:
                raise CheckpointError(
                    f"{path}: {name} has shape {list(value.shape)} where the config asks for "
                    f"{list(expected.shape)}; the checkpoint and its config don't match"
                )
            if places is not None:
                value = jax.device_put(value, places[parameter_path])
            array = jnp.asarray(value).astype(dtype)  # the device casts faster than NumPy
            finite[name] = jnp.isfinite(array).all()
            filled[parameter_path] = expected.replace(array)
            bar.update(array.nbytes)
    for name, good in finite.items():
        if not good:
            raise CheckpointError(f"{path}: NaN or infinite values in {name} (as {dtype.name})")
    leaves, structure = jax.tree.flatten(nnx.from_flat_state(filled))
    return LoadedModel(config, graphdef, structure, leaves, model.cache_specs)
