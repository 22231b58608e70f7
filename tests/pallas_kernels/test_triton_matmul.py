"""Products with matrices of codes: the Triton kernel in interpret mode, against the definition."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pallas_kernels import stored_matmul, takes_stored

# Static parameters of a compiled kernel: few, so that most examples need no compilation.
# kind, inputs, inputs of a group, zeros, bytes as scales.
FORMS = [
    ("int4", 256, 128, True, False),
    ("int4", 320, 128, False, False),  # the last group is shorter
    ("int4", 256, 32, True, False),
    ("int4", 192, 64, True, False),
    ("e2m1", 192, 32, False, True),
    ("int8", 300, 0, False, False),
    ("int8", 256, 128, True, False),
    ("int8", 96, 32, False, False),
    ("fp8", 384, 128, False, False),
    ("fp8", 200, 0, False, False),
]
ROWS, OUTPUTS = 20, 70


def matrix(rng, form, experts):  # type: ignore[no-untyped-def]
    """Codes, scales and zeros, and the numbers [X, O, I] in float64."""
    kind, inputs, group, has_zeros, scale_bytes = form
    groups = -(-inputs // group) if group else 1
    if kind in ("int4", "e2m1"):
        nibbles = rng.integers(0, 16, (experts, OUTPUTS, inputs), np.uint8)
        codes = nibbles[..., ::2] | nibbles[..., 1::2] << 4
        e2m1 = nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
        numbers = nibbles - 8.0 if kind == "int4" else e2m1
    elif kind == "int8":
        codes = rng.integers(-128, 128, (experts, OUTPUTS, inputs)).astype(np.int8)
        numbers = codes.astype(np.float64)
    else:
        codes = rng.normal(size=(experts, OUTPUTS, inputs)).astype(ml_dtypes.float8_e4m3fn)
        numbers = codes.astype(np.float64)
    if scale_bytes:
        scales = rng.integers(120, 130, (experts, OUTPUTS, groups)).astype(np.uint8)
        factors = 2.0 ** (scales - 127.0)
    else:
        scales = rng.uniform(0.5, 2, (experts, OUTPUTS, groups)).astype(np.float32)
        factors = scales.astype(np.float64)
    zeros = rng.integers(-8, 8, scales.shape).astype(np.int8) if has_zeros else None

    def spread(of_groups):  # type: ignore[no-untyped-def]
        return np.repeat(of_groups, group or inputs, axis=-1)[..., :inputs]

    if zeros is not None:
        numbers = numbers - spread(zeros.astype(np.float64))
    return codes, scales, zeros, numbers * spread(factors)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form[0]}-{form[1]}-{form[2]}")
@pytest.mark.parametrize(
    "implementation", ["interpret", pytest.param("triton", marks=pytest.mark.gpu)]
)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**31), experts=st.booleans(), splits=st.sampled_from([None, 2]))
def test_any_matrix(implementation, form, seed, experts, splits) -> None:  # type: ignore[no-untyped-def]
    if implementation == "triton" and jax.default_backend() != "gpu":
        pytest.skip("needs a CUDA device")
    rng = np.random.default_rng(seed)
    kind, inputs, group, _, _ = form
    assert takes_stored(kind, inputs, group)
    codes, scales, zeros, numbers = matrix(rng, form, 3 if experts else 1)
    x = rng.normal(size=(ROWS, inputs)).astype(np.float32)
    sizes = rng.multinomial(rng.integers(0, ROWS + 1), [1 / 3] * 3) if experts else None
    own = np.zeros(ROWS, int) if sizes is None else np.repeat(np.arange(3), sizes)
    if sizes is not None:
        x[len(own) :] = np.nan  # rows of no expert
    found = stored_matmul(
        jnp.asarray(x),
        jnp.asarray(codes),
        jnp.asarray(scales),
        None if zeros is None else jnp.asarray(zeros),
        kind=kind,
        group=group,
        sizes=None if sizes is None else jnp.asarray(sizes, jnp.int32),
        splits=splits,
        interpret=implementation == "interpret",
    )
    assert found.shape == (ROWS, OUTPUTS)
    truth = np.einsum("ri,roi->ro", x[: len(own)].astype(np.float64), numbers[own])
    size = np.einsum("ri,roi->ro", abs(x[: len(own)]).astype(np.float64), abs(numbers[own]))
    # Zeros are subtracted from sums of codes, whose rounding errors are of the codes' size.
    allowed = 2e-6 * size.max(initial=1)
    np.testing.assert_allclose(np.asarray(found)[: len(own)], truth, rtol=0, atol=allowed)


def test_bfloat16_rows() -> None:
    """Widened numbers and sums aren't rounded further than the rows are."""
    rng = np.random.default_rng(0)
    codes, scales, zeros, numbers = matrix(rng, FORMS[0], 1)
    x = rng.normal(size=(3, 256)).astype(ml_dtypes.bfloat16)
    found = stored_matmul(
        *map(jnp.asarray, (x, codes, scales, zeros)), kind="int4", group=128, interpret=True
    )
    assert found.dtype == jnp.bfloat16
    truth = x.astype(np.float64) @ numbers[0].T
    np.testing.assert_allclose(found.astype(np.float64), truth, rtol=2**-8, atol=1e-3)


def test_other_groups_are_refused() -> None:
    assert not takes_stored("int8", 300, 100)
    assert not takes_stored("int4", 64, 8)
    assert not takes_stored("int4", 63, 0)
