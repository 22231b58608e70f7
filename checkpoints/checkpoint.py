"""Checkpoint: a model's config and tensors under Hugging Face's names, whatever the file format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from jaxserve.errors import CheckpointError
from jaxserve.models.config import ModelConfig

if TYPE_CHECKING:
    import jax

    from checkpoints.stored.assemble import StoredTensor
    from checkpoints.weight_map import Source
    from jaxserve.models.sharding import Shardings
    from jaxserve.models.weights import Stored, Weight

Shapes = dict[str, tuple[int, ...]]


class Checkpoint(ABC):
    """An opened checkpoint. Opening it reads headers only, and checks every name and shape."""

    path: Path
    config: ModelConfig

    @abstractmethod
    def shapes(self) -> Shapes:
        """Shapes by Hugging Face name; a linear weight is [out, in]."""

    def parameters(self) -> dict[tuple[Hashable, ...], Source]:
        """From which tensors each parameter of the model is made."""
        from checkpoints.weight_map import sources  # imports Flax, which a tokenizer doesn't need

        return sources(self.config)

    def parameter(
        self, path: tuple[Hashable, ...], shardings: Shardings | None = None
    ) -> np.ndarray | jax.Array:
        """One parameter of the model.

        Args:
            shardings: where parameters are to be placed. A format that can read parts reads each
                straight to its device; the others return the whole in host memory.

        Raises:
            CheckpointError: a tensor is missing or damaged.
        """
        source = self.parameters()[path]
        tensors = [self.read(name) for name in source.tensors]
        kind = tensors[0].dtype
        if kind == ml_dtypes.bfloat16 and all(t.dtype == kind for t in tensors):
            # NumPy copies types that aren't its own element by element, which is slow.
            return source.build(*(t.view(np.uint16) for t in tensors)).view(kind)
        return source.build(*tensors)

    def float_type(self, path: tuple[Hashable, ...]) -> np.dtype:
        """The type that a parameter's numbers are floats of: that of its tensors, or float32."""
        kinds = {self.tensor_type(name) for name in self.parameters()[path].tensors}
        return kinds.pop() if len(kinds) == 1 else np.dtype(np.float32)

    def tensor_type(self, name: str) -> np.dtype:
        """The type that a tensor's numbers are floats of: float32 unless the file has another."""
        return np.dtype(np.float32)

    def stored(self, name: str) -> StoredTensor | None:
        """What is kept in place of a tensor of floats; None where it is floats."""
        return None

    def form(self, path: tuple[Hashable, ...]) -> Stored | None:
        """Shapes and types of a parameter as it is stored; None where it can only be had as
        floats."""
        return self._assembled(path, lambda stored: stored.form, _float_form)

    def stored_parameter(
        self, path: tuple[Hashable, ...], shardings: Shardings | None = None
    ) -> Stored:
        """A parameter as form() describes it.

        Args:
            shardings: as of parameter().

        Raises:
            CheckpointError: a tensor is missing or damaged.
        """
        made = self._assembled(path, lambda stored: stored.read(), _floats)
        assert made is not None
        return made

    def _assembled(
        self,
        path: tuple[Hashable, ...],
        of_stored: Callable[[StoredTensor], Weight],
        of_floats: Callable[[tuple[int, ...], Callable[[], np.ndarray]], Any],
    ) -> Stored | None:
        from checkpoints.stored.assemble import assemble
        from jaxserve.models.weights import Plain, Weight

        source = self.parameters()[path]
        if source.rows is None:
            return None
        found = {name: self.stored(name) for name in source.tensors}
        if not any(found.values()):
            return None
        parts = [
            of_stored(stored)
            if stored is not None
            else Weight({"values": of_floats(source.tensors[n], partial(self.read, n))}, Plain())
            for n, stored in found.items()
        ]
        return assemble(parts, source.outputs(), source.experts)

    def describe(self, path: tuple[Hashable, ...]) -> str:
        """Names of the tensors that a parameter is made from, for messages."""
        return ", ".join(self.parameters()[path].tensors)

    @abstractmethod
    def read(self, name: str) -> np.ndarray:
        """One tensor in its shape, read from disk now. It may be a read-only view of the file.

        GGUF gives float32; safetensors give what is stored: float32, float16 or bfloat16
        (ml_dtypes').

        Raises:
            CheckpointError: the checkpoint has no tensor of that name.
        """

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Size of the tensors on disk, in bytes."""


def _floats(shape: tuple[int, ...], read: Callable[[], np.ndarray]) -> np.ndarray:
    return read().astype(np.float32)


def _float_form(shape: tuple[int, ...], read: object) -> jax.ShapeDtypeStruct:
    import jax

    return jax.ShapeDtypeStruct(shape, np.float32)


def check_shapes(path: Path, found: Mapping[str, tuple[int, ...]], config: ModelConfig) -> None:
    """Checks a checkpoint's tensors against its config.

    Raises:
        CheckpointError: names the first tensor that is missing, extra or of another shape.
    """
    from checkpoints.weight_map import sources

    expected: Shapes = {}
    for source in sources(config).values():
        expected |= source.tensors
    for name, shape in expected.items():
        if name not in found:
            raise CheckpointError(f"{path}: the tensor {name} is missing")
        if found[name] != shape:
            raise CheckpointError(
                f"{path}: the tensor {name} has shape {list(found[name])}; "
                f"its config asks for {list(shape)}"
            )
    for name in found:
        if name not in expected:
            raise CheckpointError(f"{path}: the tensor {name} is not part of {config.architecture}")
