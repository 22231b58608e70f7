"""Every implementation against the reference, and the reference against softmax attention."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import copy_blocks, page_shape, paged_attention, write_kv

PORTABLE = ["xla", "cpu"]


def test_reference_is_softmax_attention():
    """One sequence in order, no options: NumPy's softmax(q k^T) v, in float64."""
    rng = np.random.default_rng(0)
    tokens, heads, kv_heads, head_dim, block = 21, 6, 2, 16, 8
    q, k, v = (
        rng.standard_normal((tokens, n, head_dim), np.float32) for n in (heads, kv_heads, kv_heads)
    )
    pools = [jnp.zeros(page_shape(4, kv_heads, block, head_dim)) for _ in range(2)]
    table = jnp.asarray([[3, 1, 2]], jnp.int32)
    slots = jnp.asarray([int(table[0, i // block]) * block + i % block for i in range(tokens)])
    out = paged_attention(
        jnp.asarray(q),
        *write_kv(jnp.asarray(k), jnp.asarray(v), *pools, slots),
        table,
        jnp.asarray([tokens], jnp.int32),
        jnp.asarray([0, tokens], jnp.int32),
        scale=0.25,
        implementation="reference",
    )
    for h in range(heads):
        scores = 0.25 * q[:, h].astype(np.float64) @ k[:, h // 3].astype(np.float64).T
        scores[np.triu_indices(tokens, 1)] = -np.inf
        weights = np.exp(scores - scores.max(1, keepdims=True))
        want = weights / weights.sum(1, keepdims=True) @ v[:, h // 3]
        np.testing.assert_allclose(out[:, h], want, rtol=2e-5, atol=2e-5)


OPTIONS = [{}, {"window": 40}, {"softcap": 5.0}, {"sinks": True}]
ALL_OPTIONS = {"window": 40, "softcap": 5.0, "sinks": True}


@pytest.mark.parametrize(
    ("options", "block_size"),
    [
        (ALL_OPTIONS, 16),
        ({}, 32),
        *(
            pytest.param(options, block_size, marks=pytest.mark.slow)
            for options in OPTIONS
            for block_size in (16, 32)
            if (options, block_size) != ({}, 32)
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
@pytest.mark.parametrize("implementation", PORTABLE)
def test_agrees_with_reference(make_batch, options, block_size, implementation):
    batch = make_batch(
        seed=1,
        sequences=[(1, 700), (90, 300), (1, 1), (0, 0), (17, 17), (1, 256), (2, 600), (0, 0)],
        block_size=block_size,
        padding=5,
        **options,
    )
    want = batch.run("reference")
    got = batch.run(implementation)
    assert not np.isnan(got).any()
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    assert (got[-5:] == 0).all()


@pytest.mark.parametrize("implementation", PORTABLE)
def test_other_sequences_do_not_change_a_bit(make_batch, implementation):
    sequences = [(1, 700), (90, 300), (1, 33)]
    sizes = {"seed": 2, "total_tokens": 128, "total_sequences": 8, "width": 48, "num_blocks": 70}
    together = make_batch(sequences=sequences, **sizes)
    swapped = make_batch(sequences=sequences[::-1], keys=[2, 1, 0], **sizes)
    one, other = together.run(implementation), swapped.run(implementation)
    for i, sequence in enumerate(sequences):
        alone = make_batch(sequences=[sequence], key=i, **sizes)
        rows = together.rows(one, i)
        np.testing.assert_array_equal(rows, swapped.rows(other, 2 - i))
        np.testing.assert_array_equal(rows, alone.rows(alone.run(implementation), 0))


@pytest.mark.parametrize("implementation", PORTABLE)
def test_a_decode_gives_the_same_bits_in_every_bucket(make_batch, implementation):
    """A pure decode step and a mixed step of other T and S give a sequence the same bits."""
    decodes = [(1, 700), (1, 33), (1, 256)]
    small = make_batch(
        seed=4, sequences=decodes, total_tokens=4, total_sequences=4, width=48, max_query_len=1
    )
    large = make_batch(
        seed=4, sequences=[*decodes, (40, 90)], total_tokens=64, total_sequences=16, width=48
    )
    one, other = small.run(implementation), large.run(implementation)
    for i in range(len(decodes)):
        np.testing.assert_array_equal(small.rows(one, i), large.rows(other, i))


def test_write_kv_drops_negative_slots_and_saturates_fp8():
    pools = [jnp.zeros(page_shape(3, 2, 8, 16), jnp.float8_e4m3fn) for _ in range(2)]
    x = jnp.full((3, 2, 16), 1e6)
    k_pages, v_pages = write_kv(x, 2.0 * x, *pools, jnp.asarray([9, -1, 23]), v_scale=1e6)
    k, v = np.asarray(k_pages, np.float32), np.asarray(v_pages, np.float32)
    assert (k[1, :, 1] == 448).all()
    assert (v[2, :, 7] == 2).all()
    assert np.count_nonzero(k) == np.count_nonzero(v) == 2 * 2 * 16


def test_copy_blocks_reads_before_it_writes():
    pool = jnp.arange(4.0)[:, None, None, None] * jnp.ones(page_shape(4, 1, 8, 16))
    src, dst = jnp.asarray([1, 2, 0, 3]), jnp.asarray([2, 3, 0, -1])
    for pages in copy_blocks(pool, pool, src, dst):
        np.testing.assert_array_equal(pages[:, 0, 0, 0], [0, 1, 1, 2])


@pytest.mark.parametrize("implementation", PORTABLE)
def test_donated_pools_are_not_copied(make_batch, implementation):
    """Each layer writes to its pools and then reads them, in one jit; the pools are not copied."""
    batch = make_batch(seed=3, sequences=[(1, 100), (20, 40)], total_tokens=32, num_blocks=4096)
    slots = jnp.arange(32, dtype=jnp.int32)

    def step(pools, q):
        for layer, (k_pages, v_pages) in enumerate(pools):
            pools[layer] = write_kv(q[:, :2], q[:, 2:4], k_pages, v_pages, slots)
            q = batch.call(implementation, q, *pools[layer])
        return pools, q

    pools = [(batch.k_pages, batch.v_pages)] * 2
    memory = jax.jit(step, donate_argnums=0).lower(pools, batch.q).compile().memory_analysis()
    assert memory.alias_size_in_bytes >= 4 * batch.k_pages.nbytes
    assert memory.temp_size_in_bytes < batch.k_pages.nbytes / 4
