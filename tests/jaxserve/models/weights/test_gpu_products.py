"""Products with stored matrices as a GPU computes them, executed on a CPU, against the product with
the widened matrix."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.models.weights import Weight, gpu_products
from jaxserve.models.weights.inputs import InputRounding
from jaxserve.models.weights.quantize import quantize
from jaxserve.models.weights.scaled import Scaled

T, I, O = 5, 256, (3, 20)  # noqa: E741 - dimension letters


@pytest.fixture
def x() -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=(T, I)), jnp.float32)


def stored(kind: str, shape: tuple[int, ...] = (*O, I)) -> Weight:
    values = np.random.default_rng(1).normal(size=shape)
    return quantize(jnp.asarray(values, jnp.float32), kind)  # type: ignore[arg-type]


def product(x: jax.Array, weight: Weight) -> np.ndarray:
    return np.einsum("ti,...i->t...", np.asarray(x), np.asarray(weight.widen())).reshape(len(x), -1)


@pytest.mark.parametrize("kind", ["fp8", "int8", "int4"])
def test_few_rows_are_multiplied_by_the_packed_matrix(kind: str, x: jax.Array) -> None:
    weight = stored(kind)
    found = gpu_products.of_packed(x, weight, interpret=True)
    assert found is not None
    np.testing.assert_allclose(found, product(x, weight), rtol=0, atol=2e-4)


def test_experts_have_their_own_matrices(x: jax.Array) -> None:
    weight, sizes = stored("int4"), jnp.array([2, 0, 3], jnp.int32)
    found = gpu_products.of_packed(x, weight, sizes, interpret=True)
    assert found is not None
    numbers = np.asarray(weight.widen())
    truth = np.concatenate([x[:2] @ numbers[0].T, x[2:] @ numbers[2].T])
    np.testing.assert_allclose(found, truth, rtol=0, atol=2e-4)


def test_many_rows_and_orders_of_their_own_are_widened_first(x: jax.Array) -> None:
    weight = stored("int8")
    many = jnp.zeros((gpu_products.MOST_ROWS + 1, I))
    assert gpu_products.of_packed(many, weight) is None
    ordered = Weight(weight.arrays | {"groups": jnp.zeros(I, jnp.int32)}, Scaled("int8"))
    assert gpu_products.of_packed(x, ordered) is None


@pytest.mark.parametrize(("kind", "dtype"), [("int8", "int8"), ("fp8", "float8_e4m3fn")])
@pytest.mark.parametrize("scale", [None, 0.02])
def test_rounded_inputs_are_multiplied_as_codes(
    kind: str, dtype: str, scale: float | None, x: jax.Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_products, "has_fp8_units", lambda: True)
    rounding = InputRounding(dtype, 0 if scale is None else None)  # type: ignore[arg-type]
    plain = stored(kind)
    own = {} if scale is None else {"input_scale": jnp.array([scale], jnp.float32)}
    weight = Weight(plain.arrays | own, plain.scheme, rounding)
    found = gpu_products.of_codes(x, weight)
    assert found is not None
    rounded = rounding.round(x, own.get("input_scale"))
    assert not np.array_equal(rounded, x)
    np.testing.assert_allclose(found, product(rounded, weight), rtol=0, atol=2e-4)


def test_a_gpu_without_fp8_units_widens(x: jax.Array) -> None:
    plain = stored("fp8")
    weight = Weight(plain.arrays, plain.scheme, InputRounding("float8_e4m3fn"))
    assert not gpu_products.has_fp8_units()  # a CPU
    assert gpu_products.of_codes(x, weight) is None
    assert gpu_products.of_codes(x, plain) is None  # inputs aren't rounded
