"""Which parameters of a checkpoint aren't plain floats, and in what form the engine keeps them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from checkpoints import Checkpoint
from jaxserve.engine.device.model_outline import Forms
from jaxserve.models.weights import Joined, Plain, Stored, Weight


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
