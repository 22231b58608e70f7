"""Faults of a checkpoint that show only when its values are read."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxserve.errors import CheckpointError
from tests.loaded_model import load_model


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_names_its_tensor(
    tiny_llama: Path, tmp_path: Path, value: float
) -> None:
    shutil.copytree(tiny_llama, tmp_path / "model")
    weights = load_file(tiny_llama / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    weights[name] = weights[name].copy()
    weights[name][5, 7] = value
    save_file(weights, tmp_path / "model" / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"NaN or infinite values in {re.escape(name)}"):
        load_model(tmp_path / "model", jnp.dtype(jnp.float32))
