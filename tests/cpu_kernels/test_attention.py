"""What tests/pallas_kernels doesn't show of the attention by machine code of our own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cpu_kernels


def call(context: int, block_size: int = 16, dtype: jnp.dtype = jnp.float32) -> np.ndarray:
    """Eight tokens of one sequence."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((8, 2, 3, 32), np.float32)
    pages = jnp.asarray(rng.standard_normal((4, 2, block_size, 32)), dtype)
    table, starts = jnp.asarray([[1, 2, 3]]), jnp.asarray([0, 8])
    attend = jax.jit(cpu_kernels.attention)
    return np.asarray(attend(q, pages, pages, table, jnp.asarray([context]), starts))


def test_senseless_lengths_hurt_no_later_call() -> None:
    want = call(context=20)
    call(context=0)
    call(context=3)
    np.testing.assert_array_equal(call(context=20), want)


def test_what_it_can_not_read_is_refused() -> None:
    with pytest.raises(ValueError, match="must be float32"):
        call(context=20, dtype=jnp.bfloat16)
    with pytest.raises(ValueError, match="multiples of 16"):
        call(context=20, block_size=8)
