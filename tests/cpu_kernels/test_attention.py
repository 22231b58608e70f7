"""Properties of the CPU attention kernel that the tests in tests/pallas_kernels do not check."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cpu_kernels
from pallas_kernels import paged_attention


def call(context: int, block_size: int = 16, dtype: jnp.dtype = jnp.float32) -> np.ndarray:
    """Attention of the last eight tokens of one sequence."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((8, 2, 3, 32), np.float32)
    pages = jnp.asarray(rng.standard_normal((4, 2, block_size, 32)), dtype)
    table, starts = jnp.asarray([[1, 2, 3]]), jnp.asarray([0, 8])
    attend = jax.jit(cpu_kernels.attention)
    return np.asarray(attend(q, pages, pages, table, jnp.asarray([context]), starts))


def test_invalid_lengths_do_not_affect_later_calls() -> None:
    want = call(context=20)
    call(context=0)
    call(context=3)
    np.testing.assert_array_equal(call(context=20), want)


def test_tokens_of_a_sequence_without_context_are_nan() -> None:
    rng = np.random.default_rng(1)
    q = rng.standard_normal((4, 2, 3, 32), np.float32)
    pages = jnp.ones((4, 2, 16, 32))
    attend = jax.jit(cpu_kernels.attention)
    out = attend(
        q, pages, pages, jnp.ones((2, 1), int), jnp.asarray([3, 0]), jnp.asarray([0, 3, 4])
    )
    np.testing.assert_allclose(out[:3], 1, rtol=1e-6)
    assert np.isnan(out[3]).all()


@pytest.mark.parametrize(("group", "head_dim", "block_size"), [(1, 256, 128), (16, 16, 48)])
def test_a_chunk_gives_the_same_bits_as_the_whole_prompt(
    group: int, head_dim: int, block_size: int
) -> None:
    tokens, cached = 150, 77
    rng = np.random.default_rng(group)
    shape = (5, 2, block_size, head_dim)
    k, v = (jnp.asarray(rng.standard_normal(shape, np.float32)) for _ in range(2))
    q = rng.standard_normal((tokens, 2, group, head_dim), np.float32)
    table, lens = jnp.asarray([[1, 2, 3, 4]]), jnp.asarray([tokens])
    attend = jax.jit(partial(cpu_kernels.attention, window=90))
    whole = attend(q, k, v, table, lens, jnp.asarray([0, tokens]))
    chunk = attend(q[cached:], k, v, table, lens, jnp.asarray([0, tokens - cached]))
    np.testing.assert_array_equal(chunk, whole[cached:])


def test_unsupported_types_and_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="must be float32"):
        call(context=20, dtype=jnp.bfloat16)
    with pytest.raises(ValueError, match="multiples of 16"):
        call(context=20, block_size=8)
    q, pages, ints = jnp.zeros((8, 2, 3, 32)), jnp.zeros((4, 2, 16, 32)), jnp.zeros(1, int)
    with pytest.raises(ValueError, match="don't fit"):
        # query_starts has one entry too few.
        cpu_kernels.attention(q, pages, pages, ints[None], ints, ints)


def test_unsupported_block_sizes_use_the_xla_implementation() -> None:
    rng = np.random.default_rng(2)
    q = jnp.asarray(rng.standard_normal((4, 6, 32), np.float32))
    pages = jnp.asarray(rng.standard_normal((4, 2, 8, 32), np.float32))
    table, lens, starts = jnp.asarray([[1, 2]]), jnp.asarray([13]), jnp.asarray([0, 4])
    got, want = (
        paged_attention(q, pages, pages, table, lens, starts, scale=0.2, implementation=name)
        for name in ("cpu", "reference")
    )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
