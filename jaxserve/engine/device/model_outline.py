"""ModelOutline: the structure of a model and the shapes of its parameters, without their values."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.cache import CacheSpec
from jaxserve.models.config import ModelConfig
from jaxserve.models.registry import model_class


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
