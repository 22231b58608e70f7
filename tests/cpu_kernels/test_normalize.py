"""Rows over their root mean square, against NumPy in float64."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cpu_kernels

NORMALIZE = jax.jit(partial(cpu_kernels.normalize, epsilon=1e-5))


@pytest.mark.parametrize("size", [1, 7, 64, 128, 576, 2050])
def test_agrees_with_numpy_and_a_row_depends_on_itself_alone(size: int) -> None:
    x = np.random.default_rng(size).standard_normal((515, size)).astype(np.float32)
    exact = x.astype(np.float64)
    want = exact / np.sqrt((exact**2).mean(axis=-1, keepdims=True) + 1e-5)
    whole = np.asarray(NORMALIZE(x))
    np.testing.assert_allclose(whole, want, rtol=2e-6, atol=1e-6)
    for rows in (slice(1), slice(1, 3), slice(7, 23), slice(100, 420), slice(514, 515)):
        np.testing.assert_array_equal(np.asarray(NORMALIZE(x[rows])), whole[rows])


def test_leading_dimensions_are_kept_and_nan_stays_in_its_row() -> None:
    x = np.ones((3, 4, 16), np.float32)
    x[1, 2, 5] = np.nan
    got = np.asarray(NORMALIZE(x))
    assert got.shape == x.shape
    assert np.isnan(got[1, 2]).all()
    assert np.isnan(got).sum() == 16


def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="must be float32"):
        cpu_kernels.normalize(jnp.ones((2, 4), jnp.bfloat16), 1e-5)
