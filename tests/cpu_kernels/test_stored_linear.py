"""Products with columns of codes: the bits of the widened matrix's, whatever the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpu_kernels

LINEAR = jax.jit(cpu_kernels.linear)
PACKED = jax.jit(cpu_kernels.packed_linear)
ROWS = jax.jit(lambda columns: columns.rows(jnp.arange(columns.outputs)))
LINEAR_TABLE = tuple(map(float, range(16)))
# Any 16 numbers, among them a negative zero, as MXFP4 has one.
TABLE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)

Problem = tuple[cpu_kernels.Columns, np.ndarray]


def spread(scales: np.ndarray, group: int, inputs: int) -> np.ndarray:
    return np.repeat(scales.astype(np.float32), group or inputs, axis=1)[:, :inputs]


def floats(dtype: Any, outputs: int, inputs: int, group: int, random: Any) -> Problem:
    w = random.standard_normal((outputs, inputs)).astype(dtype)
    return cpu_kernels.pack(jnp.asarray(w)), w.astype(np.float32)


def nibbles(outputs: int, inputs: int, group: int, random: Any) -> Problem:
    codes = random.integers(0, 16, (outputs, inputs), np.uint8)
    scales = random.integers(100, 140, (outputs, -(-inputs // (group or inputs))), np.uint8)
    numbers = spread(np.exp2(scales.astype(np.float32) - 127), group, inputs)
    packed = cpu_kernels.pack_codes(codes, group=group, table=TABLE, scales=scales)
    return packed, np.array(TABLE, np.float32)[codes] * numbers


def five_bits(outputs: int, inputs: int, group: int, random: Any) -> Problem:
    """With minima; both in six bits, with factors for all groups of an output."""
    count = -(-inputs // (group or inputs))
    codes = random.integers(0, 32, (outputs, inputs), np.uint8)
    scales, minima = random.integers(0, 64, (2, outputs, count), np.uint8)
    factors, more = random.standard_normal((2, outputs, 1)).astype(np.float16)
    arrays = {"scales": scales, "scale_factors": factors}
    arrays |= {"minima": minima, "minimum_factors": more}
    packed = cpu_kernels.pack_codes(codes, group=group, table=LINEAR_TABLE, high=1, **arrays)
    scale = spread(scales * factors.astype(np.float32), group, inputs)
    return packed, codes * scale + spread(minima * more.astype(np.float32), group, inputs)


def six_bits(outputs: int, inputs: int, group: int, random: Any) -> Problem:
    count = -(-inputs // (group or inputs))
    codes = random.integers(0, 64, (outputs, inputs), np.uint8)
    scales = random.integers(-128, 128, (outputs, count), np.int8)
    factors = random.standard_normal((outputs, count)).astype(np.float16)
    table = tuple(float(code - 32) for code in range(16))
    arrays = {"scales": scales, "scale_factors": factors}
    packed = cpu_kernels.pack_codes(codes, group=group, table=table, high=2, **arrays)
    scale = spread(scales * factors.astype(np.float32), group, inputs)
    return packed, (codes.astype(np.float32) - 32) * scale


def with_zeros(outputs: int, inputs: int, group: int, random: Any) -> Problem:
    """int8, with scales whose products are rounded."""
    count = -(-inputs // (group or inputs))
    codes = random.integers(-128, 128, (outputs, inputs), np.int8)
    scales = random.standard_normal((outputs, count)).astype(np.float32)
    zeros = random.integers(-128, 128, (outputs, count)).astype(ml_dtypes.bfloat16)
    packed = cpu_kernels.pack_codes(codes, group=group, scales=scales, zeros=zeros)
    zero = spread(zeros, group, inputs)
    return packed, (codes.astype(np.float32) - zero) * spread(scales, group, inputs)


def fp8(outputs: int, inputs: int, group: int, random: Any) -> Problem:
    """All codes but the two that aren't numbers."""
    count = -(-inputs // (group or inputs))
    every = np.arange(256, dtype=np.uint8)
    every = every[every & 127 != 127]
    codes = random.choice(every, (outputs, inputs)).view(ml_dtypes.float8_e4m3fn)
    scales = random.standard_normal((outputs, count)).astype(ml_dtypes.bfloat16)
    packed = cpu_kernels.pack_codes(jnp.asarray(codes), group=group, scales=scales)
    return packed, codes.astype(np.float32) * spread(scales, group, inputs)


KINDS: dict[str, Callable[..., Problem]] = {
    "bfloat16": lambda *sizes: floats(ml_dtypes.bfloat16, *sizes),
    "float16": lambda *sizes: floats(np.float16, *sizes),
    "float32": lambda *sizes: floats(np.float32, *sizes),
    "nibbles": nibbles,
    "five_bits": five_bits,
    "six_bits": six_bits,
    "zeros": with_zeros,
    "fp8": fp8,
}


def check(kind: str, tokens: int, outputs: int, inputs: int, group: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    columns, numbers = KINDS[kind](outputs, inputs, group, random)
    np.testing.assert_array_equal(np.asarray(ROWS(columns)), numbers)
    x = random.standard_normal((tokens, inputs)).astype(np.float32)
    got, want = np.asarray(PACKED(x, columns)), np.asarray(LINEAR(x, numbers))
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
    exact = x.astype(np.float64) @ numbers.T.astype(np.float64)
    np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 3, 8, 9, 40])
def test_the_bits_are_those_of_the_widened_matrix(kind: str, tokens: int) -> None:
    check(kind, tokens, outputs=70, inputs=416, group=32, seed=tokens)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(sorted(KINDS)),
    st.integers(1, 70),
    st.integers(1, 80),
    st.integers(1, 50),
    st.sampled_from([0, 8, 16, 64, 128]),
    st.integers(0, 99),
)
def test_any_shape(
    kind: str, tokens: int, outputs: int, eights: int, group: int, seed: int
) -> None:
    """Groups end inside of the runs of inputs whose products are summed at once."""
    check(kind, tokens, outputs, 8 * eights, group, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_that_are_no_multiple_of_eight(kind: str) -> None:
    check(kind, 12, outputs=40, inputs=203, group=0, seed=0)


def test_one_of_several_matrices() -> None:
    random = np.random.default_rng(0)
    codes = random.integers(0, 16, (3, 40, 64), np.uint8)
    scales = random.standard_normal((3, 40, 2)).astype(np.float16)
    numbers = codes * np.repeat(scales.astype(np.float32), 32, axis=2)
    several = {
        "codes": jax.vmap(
            lambda c, s: cpu_kernels.pack_codes(c, group=32, table=LINEAR_TABLE, scales=s)
        )(codes, scales),
        "float32": jax.vmap(cpu_kernels.pack)(jnp.asarray(numbers)),
    }
    x = random.standard_normal((5, 64)).astype(np.float32)
    for columns in several.values():
        for expert in range(3):
            got = np.asarray(PACKED(x, columns, jnp.int32(expert)))
            np.testing.assert_array_equal(got, np.asarray(LINEAR(x, numbers[expert])))


def test_what_does_not_fit_is_refused() -> None:
    columns = cpu_kernels.pack(jnp.zeros((40, 16), jnp.bfloat16))
    for x in (jnp.zeros((2, 8)), jnp.zeros((2, 16), jnp.bfloat16), jnp.zeros(16)):
        with pytest.raises(ValueError, match=r"x must be \[T, 16\] float32"):
            cpu_kernels.packed_linear(x, columns)
