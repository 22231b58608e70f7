"""What tests/pallas_kernels doesn't show of the attention by machine code of our own."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cpu_kernels
from pallas_kernels import paged_attention


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


def test_a_sequence_of_no_context_leaves_no_token_unwritten() -> None:
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
def test_a_chunk_has_the_bits_of_the_whole_prompt(
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


def test_what_it_can_not_read_is_refused() -> None:
    with pytest.raises(ValueError, match="must be float32"):
        call(context=20, dtype=jnp.bfloat16)
    with pytest.raises(ValueError, match="multiples of 16"):
        call(context=20, block_size=8)
    q, pages, ints = jnp.zeros((8, 2, 3, 32)), jnp.zeros((4, 2, 16, 32)), jnp.zeros(1, int)
    with pytest.raises(ValueError, match="don't fit"):
        cpu_kernels.attention(q, pages, pages, ints[None], ints, ints)  # one start too few


def test_blocks_that_it_can_not_read_go_to_xla() -> None:
    rng = np.random.default_rng(2)
    q = jnp.asarray(rng.standard_normal((4, 6, 32), np.float32))
    pages = jnp.asarray(rng.standard_normal((4, 2, 8, 32), np.float32))
    table, lens, starts = jnp.asarray([[1, 2]]), jnp.asarray([13]), jnp.asarray([0, 4])
    got, want = (
        paged_attention(q, pages, pages, table, lens, starts, scale=0.2, implementation=name)
        for name in ("cpu", "reference")
    )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
