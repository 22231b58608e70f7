"""A model with all its parameters, for tests that run it without an engine."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from checkpoints import open_checkpoint
from jaxserve.config import Quantization
from jaxserve.engine.device.model_outline import ModelOutline, outline
from jaxserve.engine.startup.loader import load_parameters
from jaxserve.engine.startup.stored_forms import stored_forms


@dataclass(frozen=True, slots=True)
class LoadedModel(ModelOutline):
    """A model and its parameters, in the order of `shapes`."""

    leaves: list[jax.Array]


def load_model(
    path: Path,
    dtype: jnp.dtype,
    max_model_len: int | None = None,
    mesh: Mesh | None = None,
    packed: bool = False,
    quantization: Quantization | None = None,
    columns: bool = False,
) -> LoadedModel:
    """Loads the checkpoint at path as the engine does.

    Args:
        packed: keep quantised weights as they are stored.
        quantization: as EngineConfig has it.
        columns: matrices lie as the CPU kernels read them, as in an engine on a CPU.
    """
    checkpoint = open_checkpoint(path, quantization)
    forms = stored_forms(checkpoint, packed)
    model = outline(checkpoint.config, dtype, max_model_len, forms, packed=columns)
    leaves = load_parameters(checkpoint, model, dtype, progress=False, mesh=mesh)
    return LoadedModel(*(getattr(model, field.name) for field in fields(model)), leaves)
