"""In what form the engine keeps the parameters of a checkpoint."""

from __future__ import annotations

from collections.abc import Hashable

import jax
import jax.numpy as jnp

from checkpoints import Checkpoint
from jaxserve.config import EngineConfig
from jaxserve.engine.device.model_outline import Forms, ModelOutline, outline
from jaxserve.engine.startup.device_info import DeviceInfo
from jaxserve.models.weights import Joined, Plain, Stored, Weight

Path = tuple[Hashable, ...]


def planned_model(config: EngineConfig, checkpoint: Checkpoint, device: DeviceInfo) -> ModelOutline:
    """The model that a checkpoint has, with its parameters in the forms that they are kept in."""
    dtype, stored = jnp.dtype(device.dtype(config)), device.keeps_stored(config)
    forms = stored_forms(checkpoint, stored)
    floats = kept_floats(checkpoint, dtype) if device.on_cpu and stored else {}
    return outline(
        checkpoint.config,
        dtype,
        config.max_model_len,
        forms,
        packed=device.on_cpu,
        floats=floats,
    )


def stored_forms(checkpoint: Checkpoint, packed: bool) -> Forms:
    """The forms of the parameters that a checkpoint doesn't keep as floats.

    Args:
        packed: whether they stay as they are stored; else numbers become floats, and what is left
            is how inputs are rounded.
    """
    forms = {path: checkpoint.form(path) for path in checkpoint.parameters()}
    stored = {path: form for path, form in forms.items() if form is not None}
    if packed:
        return stored
    floats = {path: _floats_of(form) for path, form in stored.items()}
    return {path: form for path, form in floats.items() if _rounds(form)}


def kept_floats(checkpoint: Checkpoint, dtype: jnp.dtype) -> dict[Path, jnp.dtype]:
    """The parameters that a checkpoint keeps in floats of fewer bits than a type, and of these."""
    kinds = {path: jnp.dtype(checkpoint.float_type(path)) for path in checkpoint.parameters()}
    return {path: kind for path, kind in kinds.items() if kind.itemsize < dtype.itemsize}


def _parts(form: Stored) -> tuple[Weight, ...]:
    return form.parts if isinstance(form, Joined) else (form,)


def _rounds(form: Stored) -> bool:
    return any(part.rounding is not None for part in _parts(form))


def _floats_of(form: Stored) -> Stored:
    """The form with floats for codes."""
    return jax.eval_shape(_widen_parts, form)


def _widen_parts(stored: Stored) -> Stored:
    if isinstance(stored, Joined):
        return Joined(tuple(map(_widen_part, stored.parts)), stored.axis)
    return _widen_part(stored)


def _widen_part(part: Weight) -> Weight:
    kept = {n: part.arrays[n] for n in ("input_scale",) if n in part.arrays}
    return Weight({"values": part.widen(), **kept}, Plain(), part.rounding)


def as_planned(value: Stored, form: Stored) -> Stored:
    """What was read, widened where the form is of floats."""
    structures = {jax.tree.structure(stored) for stored in (value, form)}
    if len(structures) == 1:
        return value
    return jax.jit(_widen_parts)(jax.tree.map(jnp.asarray, value))
