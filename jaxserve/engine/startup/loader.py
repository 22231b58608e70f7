"""From a checkpoint on disk to a model's parameters on the device."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from tqdm import tqdm

from checkpoints import Checkpoint
from jaxserve.errors import CheckpointError
from jaxserve.models.cache import CacheSpec
from jaxserve.models.config import ModelConfig
from jaxserve.models.registry import model_class
from jaxserve.models.sharding import shardings


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """A model split once, without its parameters: its graph, and their shapes as a flat list."""

    config: ModelConfig
    graphdef: nnx.GraphDef
    structure: jax.tree_util.PyTreeDef
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    cache_specs: tuple[CacheSpec, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the parameters."""
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in self.shapes)


def outline(config: ModelConfig, dtype: jnp.dtype, max_model_len: int | None) -> ModelOutline:
    """The model that a config describes, to serve a context of at most max_model_len.

    Raises:
        UnsupportedModelError: an architecture that we don't have.
    """
    context = config.max_position_embeddings
    config = replace(config, max_position_embeddings=min(max_model_len or context, context))
    cls = model_class(config.architecture)
    model = nnx.eval_shape(lambda: cls(config, dtype))
    graphdef, abstract = nnx.split(model)
    shapes, structure = jax.tree.flatten(abstract)
    return ModelOutline(config, graphdef, structure, tuple(shapes), model.cache_specs)


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
