"""ModelOutline: the structure of a model and the shapes of its parameters, without their values."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx

from jaxserve.models.cache import CacheSpec
from jaxserve.models.config import ModelConfig
from jaxserve.models.registry import model_class
from jaxserve.models.weights import Joined, Plain, Stored, Weight, pack

# Of the parameters that aren't plain floats, by path.
Forms: TypeAlias = Mapping[tuple[Hashable, ...], Stored]


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """A model split once, without its parameters: its graph, and their shapes as a flat list.

    Args:
        forms: of the parameters that aren't plain floats.
    """

    config: ModelConfig
    graphdef: nnx.GraphDef
    structure: jax.tree_util.PyTreeDef
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    cache_specs: tuple[CacheSpec, ...]
    forms: Forms

    @property
    def nbytes(self) -> int:
        """Bytes of the parameters."""
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in self.shapes)


def outline(
    config: ModelConfig,
    dtype: jnp.dtype,
    max_model_len: int | None,
    forms: Forms = MappingProxyType({}),
    *,
    packed: bool = False,
    floats: Mapping[tuple[Hashable, ...], jnp.dtype] = MappingProxyType({}),
) -> ModelOutline:
    """The model that a config describes, to serve a context of at most max_model_len.

    Args:
        forms: of the parameters that aren't plain floats.
        packed: matrices that are multiplied by lie as the CPU kernels read them.
        floats: by path, types that packed floats are kept in, if not dtype.

    Raises:
        UnsupportedModelError: an architecture that we don't have.
    """
    context = config.max_position_embeddings
    config = replace(config, max_position_embeddings=min(max_model_len or context, context))
    cls = model_class(config.architecture)
    model = nnx.eval_shape(lambda: cls(config, dtype))
    graphdef, abstract = nnx.split(model)
    flat: dict[tuple[Any, ...], Any] = dict(nnx.to_flat_state(abstract))
    flat |= {path: flat[path].replace(_of_type(form, dtype)) for path, form in forms.items()}
    if packed:
        tables = () if config.tie_word_embeddings else (("embed", "embedding"),)
        flat = {
            path: _packed(variable, floats.get(path)) if path not in tables else variable
            for path, variable in flat.items()
        }
    shapes, structure = jax.tree.flatten(nnx.from_flat_state(flat))
    return ModelOutline(config, graphdef, structure, tuple(shapes), model.cache_specs, forms)


def _packed(variable: Any, kept: jnp.dtype | None) -> Any:
    """The variable with a packed matrix, if it is one that is multiplied by as a whole.

    Args:
        kept: the type that floats are kept in, if not the variable's.
    """
    contracted, value = variable.get_metadata("contracted", None), variable.get_value()
    if contracted is None:
        return variable
    if kept is not None and not isinstance(value, Stored):
        value = jax.ShapeDtypeStruct(value.shape, kept)
    form = jax.eval_shape(
        partial(pack, contracted=contracted, experts=is_of_experts(variable)), value
    )
    return variable if form is None else variable.replace(form)


def is_of_experts(variable: Any) -> bool:
    """Whether a parameter's first dimension is the experts'."""
    return bool(variable.get_metadata("out_sharding")[0] == "expert")


def _of_type(form: Stored, dtype: jnp.dtype) -> Stored:
    """The form with floats of this type; codes and scales keep theirs."""

    def typed(part: Weight) -> Weight:
        arrays = dict(part.arrays)
        if isinstance(part.scheme, Plain):
            arrays["values"] = jax.ShapeDtypeStruct(arrays["values"].shape, dtype)
        return Weight(arrays, part.scheme, part.rounding)

    if isinstance(form, Joined):
        return Joined(tuple(map(typed, form.parts)), form.axis)
    return typed(form)
