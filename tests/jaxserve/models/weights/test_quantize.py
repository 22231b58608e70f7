"""Quantising floats: how far from them the codes lie, and that an engine serves them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.config import Quantization
from jaxserve.models.weights.quantize import GROUP, quantize


def matrix(inputs: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = random.standard_normal((3, 2, inputs)).astype(np.float32)
    values[1] *= 1000
    values[2, 0] = 0
    values[0, 1] = np.abs(values[0, 1]) + 1  # zero lies outside of the numbers
    return values


@settings(max_examples=10, deadline=None)
@given(st.sampled_from([64, 128, 192, 576]), st.integers(0, 99))
def test_int4_is_within_half_a_step_of_its_group(inputs: int, seed: int) -> None:
    values = matrix(inputs, seed)
    weight = quantize(jnp.asarray(values), "int4")
    assert weight.shape == values.shape
    error = np.abs(np.asarray(weight.widen()) - values)
    for first in range(0, inputs, GROUP):
        group = np.s_[..., first : first + GROUP]
        span = np.maximum(values[group].max(-1), 0) - np.minimum(values[group].min(-1), 0)
        # A zero is rounded, and a scale to float16: an end may lie half a step past the codes.
        step = span[..., None] / 15
        assert (error[group] <= 1.02 * step + 1e-30).all()
        assert np.median(error[group] / np.maximum(step, 1e-30)) < 0.3


def test_int8_and_fp8_are_within_half_a_step() -> None:
    values = matrix(192, 0)
    largest = np.abs(values).max(-1, keepdims=True)
    eight = quantize(jnp.asarray(values), "int8")
    assert (np.abs(np.asarray(eight.widen()) - values) <= 0.501 * largest / 127).all()
    fp8 = quantize(jnp.asarray(values), "fp8")
    # Three bits of mantissa, and 2 ** -9 the smallest step of the smallest numbers.
    bound = np.maximum(np.abs(values) / 16, largest / 448 * 2.0**-10)
    assert (np.abs(np.asarray(fp8.widen()) - values) <= 1.01 * bound).all()
    assert fp8.rounding is eight.rounding is None


@pytest.mark.parametrize(("kind", "bits"), [("fp8", 8), ("int8", 8), ("int4", 4)])
def test_bytes(kind: Quantization, bits: int) -> None:
    form = jax.eval_shape(lambda: quantize(jnp.zeros((256, 1024)), kind))
    sizes = {n: a.size * a.dtype.itemsize for n, a in form.arrays.items()}
    assert sizes["codes"] == 256 * 1024 * bits // 8
    assert sum(sizes.values()) < 1.06 * sizes["codes"]
