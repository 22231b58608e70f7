"""The Triton kernels in interpret mode on a CPU, against the reference, and lowered for CUDA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pallas_kernels import page_shape, paged_attention, triton_cache, write_kv, xla

TOKENS, SEQUENCES, CONTEXT = 64, 6, 640

# Types of queries and of pools, and the tolerance between two orders of summation.
TYPES = {
    "float32": (jnp.float32, jnp.float32, 2e-5),
    "bfloat16": (jnp.bfloat16, jnp.bfloat16, 2e-2),
    "float16": (jnp.float16, jnp.float16, 3e-3),
    "e4m3": (jnp.bfloat16, jnp.float8_e4m3fn, 2e-2),
    "e5m2": (jnp.float16, jnp.float8_e5m2, 3e-3),
    "e4m3-float32": (jnp.float32, jnp.float8_e4m3fn, 2e-5),
}
# Static parameters of a compiled kernel; few, so that most examples need no compilation.
SHAPES = [
    {"heads": 6, "kv_heads": 2, "head_dim": 64, "block_size": 16},
    {"heads": 4, "kv_heads": 1, "head_dim": 128, "block_size": 32},
    {"heads": 3, "kv_heads": 3, "head_dim": 80, "block_size": 16},
    {"heads": 4, "kv_heads": 2, "head_dim": 256, "block_size": 128},
]
OPTIONS = [
    {},
    {"window": 70},
    {"window": 16, "sinks": True},
    {"softcap": 3.0},
    {"softcap": 2.0, "window": 300, "sinks": True},
    {"k_scale": 0.5, "v_scale": [2.0]},
]
# "interpret" runs the triton kernels on a CPU.
IMPLEMENTATIONS = ["interpret", "xla", "cpu", pytest.param("triton", marks=pytest.mark.gpu)]


@st.composite
def ragged(draw) -> list[tuple[int, int]]:
    """(query tokens, context) of up to SEQUENCES sequences, some of them padding, in any order."""
    left, sequences = TOKENS, []
    for _ in range(draw(st.integers(1, SEQUENCES))):
        kind = draw(st.sampled_from(["decode", "prefill", "chunk", "padding"]))
        count = {"decode": 1, "padding": 0}.get(kind)
        if count is None:
            count = draw(st.integers(2, 40))
        count = min(count, left)
        extra = 0 if kind == "prefill" else draw(st.integers(0, CONTEXT - count))
        sequences.append((count, count + extra if count else 0))
        left -= count
    return sequences


def compare(make_batch, implementation, sequences, shape, options, types, seed=0) -> None:
    dtype, kv_dtype, tolerance = TYPES[types]
    batch = make_batch(
        seed=seed,
        sequences=sequences,
        total_tokens=TOKENS,
        total_sequences=SEQUENCES,
        width=CONTEXT // shape["block_size"],
        num_blocks=SEQUENCES * CONTEXT // shape["block_size"] + 2,
        dtype=dtype,
        kv_dtype=kv_dtype,
        **shape,
        **options,
    )
    want, got = batch.run("reference"), batch.run(implementation)
    scale = 2.0 if "v_scale" in options else 1.0
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=scale * tolerance)
    assert not got[sum(count for count, _ in sequences) :].any()


MIXED = [(1, 640), (30, 300), (0, 0), (17, 17), (1, 1), (3, 257)]
given_batches = given(
    sequences=ragged(),
    shape=st.sampled_from(SHAPES),
    options=st.sampled_from(OPTIONS),
    types=st.sampled_from(sorted(TYPES)),
    seed=st.integers(0, 2**16),
)
settled = settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize(
    ("shape", "options", "types"),
    [
        (SHAPES[2], OPTIONS[4], "e5m2"),
        pytest.param(SHAPES[0], OPTIONS[0], "float32", marks=pytest.mark.slow),
        pytest.param(SHAPES[1], OPTIONS[2], "bfloat16", marks=pytest.mark.slow),
        pytest.param(SHAPES[0], OPTIONS[5], "e4m3", marks=pytest.mark.slow),
    ],
    ids=["softcap-80", "plain", "window-sinks", "e4m3-scales"],
)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_mixed_batch(make_batch, implementation, shape, options, types):
    compare(make_batch, implementation, MIXED, shape, options, types)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@example(MIXED, SHAPES[3], OPTIONS[4], "bfloat16", 0)
@settled
@given_batches
def test_any_batch(make_batch, implementation, sequences, shape, options, types, seed):
    compare(make_batch, implementation, sequences, shape, options, types, seed)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn])
def test_write_kv_equals_the_scatter(dtype):
    rng = np.random.default_rng(0)
    pool = jnp.asarray(rng.standard_normal(page_shape(5, 3, 16, 80)), dtype)
    new = [jnp.asarray(rng.standard_normal((7, 3, 80)), dtype) for _ in range(2)]
    slots = jnp.asarray([17, -1, 79, 16, 40, 3, -5], jnp.int32)
    got = triton_cache.write_kv(*new, pool, pool, slots, interpret=True)
    want = xla.write_kv(*new, pool, pool, slots)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))


@pytest.mark.parametrize(
    ("types", "sequences"),
    [
        ("bfloat16", 1),
        ("e4m3", 64),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("e4m3", 1), ("float32", 1), ("bfloat16", 64), ("float32", 64))
        ),
    ],
)
def test_lowers_for_cuda_without_a_gpu(types, sequences):
    """Finds operations that interpret mode accepts and Triton refuses."""
    dtype, kv_dtype, _ = TYPES[types]
    shape = jax.ShapeDtypeStruct
    pool = shape(page_shape(64, 2, 16, 128), kv_dtype)
    new = shape((64, 2, 128), dtype)

    def step(q, k, v, k_pages, v_pages, tables, contexts, starts, slots):
        pools = write_kv(k, v, k_pages, v_pages, slots, implementation="triton")
        batch = (q, *pools, tables, contexts, starts)
        return paged_attention(*batch, scale=0.1, window=64, implementation="triton"), pools

    ints = [(sequences, 64), (sequences,), (sequences + 1,), (64,)]
    arguments = (
        shape((64, 8, 128), dtype),
        new,
        new,
        pool,
        pool,
        *(shape(x, jnp.int32) for x in ints),
    )
    with on_a100():
        text = jax.jit(step).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    for name in ["write_kv", "paged_prefill", "paged_decode"] + ["paged_decode_merge"] * (
        sequences == 1
    ):
        assert f'"{name}"' in text


@pytest.mark.parametrize("blocks", [2**17, 2**17 + 1, 2**18, 2**18 + 1])
def test_an_8_bit_pool_with_offsets_beyond_32_bits_is_refused(blocks):
    pool = jax.ShapeDtypeStruct(page_shape(blocks, 8, 16, 128), jnp.float8_e5m2)
    new = jax.ShapeDtypeStruct((1, 8, 128), jnp.bfloat16)
    slots = jax.ShapeDtypeStruct((1,), jnp.int32)

    def write(*args):
        return write_kv(*args, implementation="triton")

    if 2**17 < blocks <= 2**18:
        with pytest.raises(ValueError, match="8-bit pool"):
            jax.eval_shape(write, new, new, pool, pool, slots)
    else:
        assert jax.eval_shape(write, new, new, pool, pool, slots)[0].shape == pool.shape


def on_a100():
    """A context in which Pallas lowers for an A100; older versions of Pallas need none."""
    device = getattr(jax.sharding, "AbstractDevice", None)
    if device is None or tuple(map(int, jax.__version__.split(".")[:2])) < (0, 11):
        import contextlib

        return contextlib.nullcontext()
    a100 = device(device_kind="NVIDIA A100-SXM4-80GB", num_cores=108, platform="gpu")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=a100))
