"""Products with stored matrices against their definition in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.models.weights import (
    Joined,
    Plain,
    Weight,
    expert_linear,
    experts_linear,
    linear,
    take,
    widened,
)
from jaxserve.models.weights.inputs import InputRounding
from jaxserve.models.weights.scaled import E2M1, Scaled

F32 = jnp.dtype(jnp.float32)


def int4(
    outputs: tuple[int, ...], inputs: int, group: int, seed: int = 0
) -> tuple[Weight, np.ndarray]:
    """A random matrix with zeros, and its numbers."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 16, (*outputs, inputs), np.uint8)
    zeros = random.integers(-8, 9, (*outputs, inputs // group), np.int8)
    scales = random.standard_normal((*outputs, inputs // group)).astype(np.float16)
    packed = codes[..., ::2] | codes[..., 1::2] << 4
    arrays = {"codes": packed, "scales": scales, "zeros": zeros}
    spread = [np.repeat(a.astype(np.float32), group, axis=-1) for a in (zeros, scales)]
    numbers = (codes.astype(np.float32) - 8 - spread[0]) * spread[1]
    return Weight({n: jnp.asarray(a) for n, a in arrays.items()}, Scaled("int4", group)), numbers


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.sampled_from([2, 16, 32]), st.integers(0, 99))
def test_int4_numbers(groups: int, group: int, seed: int) -> None:
    stored, numbers = int4((5, 3), groups * group, group, seed)
    assert stored.shape == numbers.shape
    np.testing.assert_array_equal(np.asarray(stored.widen()), numbers)


def test_e2m1_numbers_with_scales_that_are_powers_of_two() -> None:
    codes = np.arange(64, dtype=np.uint8).reshape(1, 64)  # every pair of the first four by all
    scales = np.array([[126, 127, 128, 130]], np.uint8)
    stored = Weight(
        {"codes": jnp.asarray(codes), "scales": jnp.asarray(scales)}, Scaled("e2m1", 32)
    )
    pairs = [E2M1[c & 15] for c in range(64)], [E2M1[c >> 4] for c in range(64)]
    numbers = np.stack(pairs, axis=-1).reshape(4, 32) * np.array([[0.5], [1], [2], [8]])
    np.testing.assert_array_equal(np.asarray(stored.widen()), numbers.reshape(1, 128))


def test_inputs_in_groups_of_any_order() -> None:
    random = np.random.default_rng(0)
    codes = random.integers(-128, 128, (4, 12), np.int8)
    scales = random.standard_normal((4, 3)).astype(np.float32)
    groups = random.permutation(np.repeat(np.arange(3), 4)).astype(np.int32)
    arrays = {"codes": codes, "scales": scales, "groups": groups}
    stored = Weight({n: jnp.asarray(a) for n, a in arrays.items()}, Scaled("int8", 4))
    expected = np.array([[codes[o, i] * scales[o, groups[i]] for i in range(12)] for o in range(4)])
    np.testing.assert_array_equal(np.asarray(stored.widen()), expected)


@pytest.mark.parametrize("rows", [1, 2, 7, 33])
def test_a_product_has_the_bits_of_the_widened_one(rows: int) -> None:
    stored, numbers = int4((3, 2, 8), 64, 32)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((rows, 64)), F32)
    got, want = jax.jit(linear)(x, stored), jax.jit(linear)(x, jnp.asarray(numbers))
    assert got.shape == (rows, 3, 2, 8)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
    np.testing.assert_allclose(got, np.einsum("ti,abci->tabc", x, numbers), rtol=1e-4, atol=1e-3)


def test_parts_of_different_schemes_are_joined() -> None:
    first, numbers = int4((3, 2, 8), 64, 32)
    random = np.random.default_rng(1)
    floats = random.standard_normal((3, 1, 8, 64)).astype(np.float32)
    joined = Joined((first, Weight({"values": jnp.asarray(floats)}, Plain())), 1)
    whole = np.concatenate([numbers, floats], axis=1)
    assert joined.shape == whole.shape
    np.testing.assert_array_equal(np.asarray(widened(joined, F32)), whole)
    x = random.standard_normal((5, 64)).astype(np.float32)
    got = linear(jnp.asarray(x), joined)
    np.testing.assert_allclose(got, np.einsum("ti,abci->tabc", x, whole), rtol=1e-4, atol=1e-3)


def test_rows_of_a_table() -> None:
    stored, numbers = int4((40,), 64, 32)
    ids = jnp.array([3, 39, 3, 0])
    np.testing.assert_array_equal(np.asarray(take(stored, ids, F32)), numbers[np.asarray(ids)])


def test_experts() -> None:
    stored, numbers = int4((4, 2, 8), 64, 32)
    x = np.random.default_rng(1).standard_normal((10, 64)).astype(np.float32)
    own = np.array([0, 0, 0, 1, 1, 3, 3, 3, 3, 3])
    expected = np.einsum("ti,tabi->tab", x, numbers[own]).reshape(10, 16)
    sizes = jnp.asarray(np.bincount(own, minlength=4))
    got = experts_linear(jnp.asarray(x), stored, sizes, jnp.asarray(own))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)
    one = expert_linear(jnp.asarray(x), stored, jnp.int32(3))
    alone = np.einsum("ti,abi->tab", x, numbers[3]).reshape(10, 16)
    np.testing.assert_allclose(one, alone, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("dtype", "largest"), [("int8", 127.5), ("float8_e4m3fn", 448)])
@pytest.mark.parametrize("group", [0, 32])
def test_dynamic_rounding_of_inputs(dtype: str, largest: float, group: int) -> None:
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    blocks = x.reshape(3, -1, group or 64)
    scales = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(largest)
    scaled = blocks / scales
    rounded = np.rint(scaled).clip(-128, 127) if dtype == "int8" else scaled.astype(dtype)
    expected = (rounded.astype(np.float32) * scales).reshape(x.shape)
    got = InputRounding(dtype, group).round(jnp.asarray(x), None)  # type: ignore[arg-type]
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert 0 < np.abs(expected - x).max() < scales.max() * (0.51 if dtype == "int8" else 17)


def test_static_rounding_clips() -> None:
    x = jnp.array([[0.26, -0.24, 300.0, -300.0]])
    got = InputRounding("int8", None).round(x, jnp.array(0.5))
    np.testing.assert_array_equal(np.asarray(got), [[0.5, 0.0, 63.5, -64.0]])
