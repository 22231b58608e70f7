"""A checkpoint of floats whose layers' matrices are quantised while they are read."""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from checkpoints.checkpoint import Checkpoint, Shapes
from checkpoints.weight_map import Source
from jaxserve.config import Quantization
from jaxserve.errors import ConfigError
from jaxserve.models.sharding import Shardings
from jaxserve.models.weights import Stored, Weight
from jaxserve.models.weights.quantize import quantize

Path = tuple[Hashable, ...]


class QuantizedCheckpoint(Checkpoint):
    """Another checkpoint with its layers' matrices in few bits; tables, heads, routers, norms and
    biases stay floats, being small or sensitive.

    Raises:
        ConfigError: the other one is quantised already.
    """

    def __init__(self, floats: Checkpoint, kind: Quantization) -> None:
        if any(floats.form(path) is not None for path in floats.parameters()):
            raise ConfigError(
                f"{floats.path} is quantised already: leave quantization out, or name a "
                "checkpoint of floats"
            )
        self.path, self.config = floats.path, floats.config
        self._floats, self._kind = floats, kind

    def shapes(self) -> Shapes:
        return self._floats.shapes()

    def parameters(self) -> dict[Path, Source]:
        return self._floats.parameters()

    def read(self, name: str) -> np.ndarray:
        return self._floats.read(name)

    def describe(self, path: Path) -> str:
        return self._floats.describe(path)

    @property
    def nbytes(self) -> int:
        return self._floats.nbytes

    def float_type(self, path: Path) -> np.dtype:
        return self._floats.float_type(path)

    def form(self, path: Path) -> Stored | None:
        source = self.parameters()[path]
        if not _is_quantized(source):
            return None
        shape = (*source.outputs().shape, math.prod(source.shape[i] for i in source.inputs))
        even = shape[-1] % 2 == 0
        if self._kind == "int4" and not even:
            raise ConfigError(
                f"int4 needs an even number of inputs; {self.describe(path)} has {shape[-1]}"
            )
        floats = jax.ShapeDtypeStruct(shape, jnp.float32)
        form: Weight = jax.eval_shape(partial(quantize, kind=self._kind), floats)
        return form

    def stored_parameter(self, path: Path, shardings: Shardings | None = None) -> Stored:
        source = self.parameters()[path]
        values = jnp.asarray(self._floats.parameter(path))
        outputs = [i for i in range(values.ndim) if i not in source.inputs]
        shape = (*(values.shape[i] for i in outputs), -1)
        return quantize(values.transpose(*outputs, *source.inputs).reshape(shape), self._kind)

    def parameter(self, path: Path, shardings: Shardings | None = None) -> np.ndarray | jax.Array:
        source = self.parameters()[path]
        if not _is_quantized(source):
            return self._floats.parameter(path, shardings)
        stored = self.stored_parameter(path)
        assert isinstance(stored, Weight)
        return as_parameter(stored.widen(), source)


def as_parameter(values: jax.Array, source: Source) -> jax.Array:
    """Numbers [*O, I] in the order of a parameter's dimensions."""
    outputs = [i for i in range(len(source.shape)) if i not in source.inputs]
    order = [*outputs, *source.inputs]
    sizes = [source.shape[i] for i in order]
    back = sorted(range(len(order)), key=order.__getitem__)
    return values.reshape(sizes).transpose(back)


def _is_quantized(source: Source) -> bool:
    return source.rows is not None and not source.table
