"""The CPU kernel for x @ w.T, against NumPy in float64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cpu_kernels

LINEAR = jax.jit(cpu_kernels.linear)


def arrays(tokens: int, inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(tokens + outputs)
    shapes = (tokens, inputs), (outputs, inputs)
    x, w = (rng.standard_normal(shape, np.float32) for shape in shapes)
    return x, w


@pytest.mark.parametrize("inputs", [1, 7, 64, 576, 3000])
@pytest.mark.parametrize(("tokens", "outputs"), [(1, 1), (2, 3), (3, 97), (65, 5), (200, 130)])
def test_agrees_with_numpy(tokens: int, inputs: int, outputs: int) -> None:
    x, w = arrays(tokens, inputs, outputs)
    want = x.astype(np.float64) @ w.T.astype(np.float64)
    np.testing.assert_allclose(LINEAR(x, w), want, rtol=1e-5, atol=1e-6 * inputs)


@pytest.mark.parametrize("inputs", [7, 576])
def test_the_bits_of_a_row_depend_on_that_row_alone(inputs: int) -> None:
    x, w = arrays(300, inputs, 203)
    whole = np.asarray(LINEAR(x, w))
    for rows in (slice(1), slice(2, 4), slice(5, 22), slice(299, 300), slice(100, 229)):
        np.testing.assert_array_equal(LINEAR(x[rows], w), whole[rows])
    np.testing.assert_array_equal(LINEAR(x, w[3:100]), whole[:, 3:100])


def test_rows_of_zeros_give_zeros_and_rows_with_nan_give_nan() -> None:
    x, w = arrays(40, 64, 30)
    want = np.asarray(LINEAR(x, w))
    x[11], x[12, 3] = np.nan, np.inf
    x[35:] = 0
    got = np.asarray(LINEAR(x, w))
    assert np.isnan(got[11]).all()
    assert not np.isfinite(got[12]).any()
    assert not got[35:].any()
    others = np.r_[:11, 13:35]
    np.testing.assert_array_equal(got[others], want[others])


def test_concurrent_calls_give_the_same_bits_as_single_calls() -> None:
    problems = [arrays(tokens, 200, 999) for tokens in (1, 30, 64, 70)]
    alone = [np.asarray(LINEAR(*problem)) for problem in problems]

    def repeat(i: int) -> None:
        for _ in range(50):
            np.testing.assert_array_equal(LINEAR(*problems[i]), alone[i])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(repeat, range(4)))


def test_denormals_are_treated_alike_on_every_thread() -> None:
    x, w = np.full((4, 8), 1e-20, np.float32), np.full((4000, 8), 1e-20, np.float32)
    seen = {np.asarray(LINEAR(x, w)).tobytes() for _ in range(100)}
    assert len(seen) == 1


def test_unsupported_types_are_refused() -> None:
    with pytest.raises(ValueError, match="must be float32"):
        LINEAR(jnp.zeros((2, 4), jnp.bfloat16), jnp.zeros((3, 4)))


def test_unsupported_shapes_are_refused() -> None:
    for x, w in (((2, 64), (3, 32)), ((64,), (3, 64))):
        with pytest.raises(ValueError, match=r"w \[O, I\]"):
            LINEAR(jnp.zeros(x), jnp.zeros(w))
