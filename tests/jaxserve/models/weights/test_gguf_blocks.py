"""GGML's blocks against gguf's own dequantisation: every bit."""

from __future__ import annotations

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.models.weights import Weight
from jaxserve.models.weights.gguf_blocks import LAYOUTS, GGUFBlocks

ROWS, BLOCKS = 48, 3


def random_blocks(kind: str, seed: int = 0) -> np.ndarray:
    """Blocks of any bits, with finite scales."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (ROWS, BLOCKS, LAYOUTS[kind].nbytes), np.uint8)
    halves = {"Q6_K": (208,), "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,)}.get(kind, (0, 2))
    for offset in halves:
        scales = random.standard_normal((ROWS, BLOCKS, 1)).astype(np.float16)
        blocks[..., offset : offset + 2] = scales.view(np.uint8)
    return blocks


@pytest.mark.parametrize("kind", LAYOUTS)
def test_the_bits_are_those_of_gguf(kind: str) -> None:
    blocks = random_blocks(kind)
    stored = Weight({"blocks": jnp.asarray(blocks)}, GGUFBlocks(kind))
    expected = gguf.dequantize(blocks.reshape(ROWS, -1), gguf.GGMLQuantizationType[kind])
    assert stored.shape == expected.shape
    got = np.asarray(jax.jit(Weight.widen)(stored))
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", LAYOUTS)
def test_block_sizes_are_those_of_gguf(kind: str) -> None:
    expected = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    assert (LAYOUTS[kind].values, LAYOUTS[kind].nbytes) == expected
