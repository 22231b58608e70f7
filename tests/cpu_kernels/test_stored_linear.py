"""Products with GGML's blocks: the bits of the widened matrix's, and gguf's numbers."""

from __future__ import annotations

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cpu_kernels

LINEAR = jax.jit(cpu_kernels.linear)
STORED = jax.jit(cpu_kernels.stored_linear, static_argnames="kind")
HALVES = {"Q6_K": (208,), "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,)}  # others begin with two


def problem(kind: str, outputs: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Random blocks [O, N, bytes] with finite scales, and what gguf widens them to."""
    random = np.random.default_rng(outputs)
    size = cpu_kernels.BLOCKS[kind][1]
    blocks = random.integers(0, 256, (outputs, count, size), np.uint8)
    for offset in HALVES.get(kind, (0, 2)):
        scales = random.standard_normal((outputs, count, 1)).astype(np.float16)
        blocks[..., offset : offset + 2] = scales.view(np.uint8)
    floats = gguf.dequantize(blocks.reshape(outputs, -1), gguf.GGMLQuantizationType[kind])
    return blocks, floats


@pytest.mark.parametrize("kind", cpu_kernels.BLOCKS)
@pytest.mark.parametrize(("tokens", "outputs", "count"), [(1, 48, 6), (3, 17, 1), (200, 50, 3)])
def test_the_bits_are_those_of_the_widened_matrix(
    kind: str, tokens: int, outputs: int, count: int
) -> None:
    blocks, floats = problem(kind, outputs, count)
    x = np.random.default_rng(0).standard_normal((tokens, floats.shape[1])).astype(np.float32)
    got, want = np.asarray(STORED(x, blocks, kind=kind)), np.asarray(LINEAR(x, floats))
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
    exact = x.astype(np.float64) @ floats.T.astype(np.float64)
    np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())


def test_each_number_is_what_gguf_widens() -> None:
    """Rows of an identity pick single columns."""
    for kind in cpu_kernels.BLOCKS:
        blocks, floats = problem(kind, 20, 2)
        got = np.asarray(STORED(np.eye(floats.shape[1], dtype=np.float32), blocks, kind=kind))
        np.testing.assert_array_equal(got, floats.T)


def test_what_does_not_fit_is_refused() -> None:
    blocks = jnp.zeros((4, 2, 18), jnp.uint8)
    for x, kind, message in (
        (jnp.zeros((2, 64)), "Q2_K", "Q2_K aren't supported"),
        (jnp.zeros((2, 32)), "Q4_0", r"blocks \[O, I / 32, 18\]"),
        (jnp.zeros((2, 64)), "Q4_1", r"blocks \[O, I / 32, 20\]"),
        (jnp.zeros((2, 64), jnp.bfloat16), "Q4_0", "must be float32"),
    ):
        with pytest.raises(ValueError, match=message):
            STORED(x, blocks, kind=kind)
