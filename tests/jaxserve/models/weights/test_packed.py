"""Matrices that the engine packs for the CPU kernels when it loads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from checkpoints import open_checkpoint
from jaxserve.engine.device.model_outline import outline
from jaxserve.engine.startup.loader import load_parameters
from jaxserve.models.weights import (
    Joined,
    Packed,
    Weight,
    expert_linear,
    linear,
    nbytes,
    pack,
    take,
    widened,
)
from jaxserve.models.weights.gguf_blocks import LAYOUTS, GGUFBlocks
from jaxserve.models.weights.inputs import InputRounding
from jaxserve.models.weights.quantize import quantize
from jaxserve.models.weights.scaled import Scaled


def stored(name: str, outputs: tuple[int, ...]) -> Weight:
    """A random matrix [*O, 512] in GGML's blocks, or with scales."""
    random = np.random.default_rng(len(name))
    if name in LAYOUTS:
        layout = LAYOUTS[name]
        blocks = random.integers(0, 256, (*outputs, 512 // layout.values, layout.nbytes), np.uint8)
        for offset in {"Q6_K": (208,)}.get(name, (0, 2)):
            halves = random.standard_normal((*blocks.shape[:-1], 1)).astype(np.float16)
            blocks[..., offset : offset + 2] = halves.view(np.uint8)
        return Weight({"blocks": jnp.asarray(blocks)}, GGUFBlocks(name))
    values = jnp.asarray(random.standard_normal((*outputs, 512)), jnp.float32)
    if name == "e2m1":
        codes = random.integers(0, 256, (*outputs, 256), np.uint8)
        scales = random.integers(110, 130, (*outputs, 16), np.uint8)
        return Weight({"codes": codes, "scales": scales}, Scaled("e2m1", 32))
    return quantize(values, name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*LAYOUTS, "int4", "int8", "fp8", "e2m1"])
def test_a_stored_matrix_has_the_products_of_its_numbers(name: str) -> None:
    """And no more bytes than an eighth over what is stored."""
    weight = stored(name, (2, 35))
    packed = pack(weight, (-1,))
    assert packed is not None
    numbers = jax.jit(Weight.widen)(weight)
    for rows in (1, 5, 20):
        x = jnp.asarray(np.random.default_rng(rows).standard_normal((rows, 512)), jnp.float32)
        got, want = jax.jit(linear)(x, packed), jax.jit(linear)(x, numbers)
        assert got.shape == (rows, 2, 35)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
    padded = 96 / 70  # outputs, to whole tiles of any processor
    assert nbytes(packed) <= 1.125 * padded * nbytes(weight)


def test_parts_of_different_schemes_are_joined() -> None:
    parts = stored("Q4_K", (3, 2, 8)), stored("Q6_K", (3, 1, 8))
    packed = pack(Joined(parts, 1), (-1,))
    assert packed is not None
    assert packed.shape == (3, 3, 8, 512)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((5, 512)), jnp.float32)
    want = jax.jit(linear)(x, widened(Joined(parts, 1), jnp.dtype(jnp.float32)))
    np.testing.assert_array_equal(np.asarray(jax.jit(linear)(x, packed)), np.asarray(want))


@pytest.mark.parametrize("name", ["e2m1", "Q5_0", "floats"])
def test_experts_have_the_products_of_their_own_matrices(name: str) -> None:
    if name == "floats":
        values = np.random.default_rng(0).standard_normal((3, 512, 2, 20))
        matrix: Any = jnp.asarray(values, jnp.float32)  # [X, I, *O]
        numbers = jnp.moveaxis(matrix, 1, -1)
        packed = pack(matrix, (-3,), experts=True)
    else:
        matrix = stored(name, (3, 2, 20))
        numbers, packed = matrix.widen(), pack(matrix, (-3,), experts=True)
    assert packed is not None
    assert packed.shape == (3, 2, 20, 512)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((16, 512)), jnp.float32)
    for expert in range(3):
        got = jax.jit(expert_linear)(x, packed, jnp.int32(expert))
        want = jax.jit(linear)(x, numbers[expert]).reshape(16, 40)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_inputs_are_rounded_before_they_are_multiplied() -> None:
    rounding = InputRounding("int8", None)
    weight = quantize(jnp.asarray(np.random.default_rng(0).standard_normal((9, 64))), "int8")
    scaled = Weight(weight.arrays | {"input_scale": jnp.float32(0.5)}, weight.scheme, rounding)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((4, 64)), jnp.float32)
    packed = pack(scaled, (-1,))
    assert packed is not None
    want = linear(rounding.round(x, jnp.float32(0.5)), weight.widen())
    np.testing.assert_array_equal(np.asarray(jax.jit(linear)(x, packed)), np.asarray(want))


def test_groups_in_any_order_stay_as_they_are() -> None:
    arrays = {
        "codes": jnp.zeros((4, 16), jnp.int8),
        "scales": jnp.ones((4, 2)),
        "groups": jnp.asarray([0, 1] * 8),
    }
    assert pack(Weight(arrays, Scaled("int8", 8)), (-1,)) is None


def test_products_have_the_bits_of_the_float_matrix() -> None:
    random = np.random.default_rng(0)
    kernel = jnp.asarray(random.standard_normal((2, 5, 9, 3, 8)), jnp.float32)  # [*O, *I]
    x = jnp.asarray(random.standard_normal((4, 3, 8)), jnp.float32)
    packed = pack(kernel, (-2, -1))
    assert packed is not None
    assert packed.shape == (2, 5, 9, 24)
    product = jax.jit(linear)(x, packed)
    assert product.shape == (4, 2, 5, 9)
    flat = kernel.reshape(90, 24)
    np.testing.assert_array_equal(product.reshape(4, -1), linear(x.reshape(4, -1), flat))
    np.testing.assert_allclose(product.reshape(4, -1), x.reshape(4, -1) @ flat.T, rtol=1e-4)


@pytest.mark.parametrize("name", ["floats", "Q8_0", "Q5_K", "Q6_K", "fp8"])
def test_rows_of_a_packed_table_are_its_own(name: str) -> None:
    if name == "floats":
        values = np.random.default_rng(0).standard_normal((100, 24))
        table: Any = jnp.asarray(values, jnp.float32)
        numbers = table
    else:
        table = stored(name, (100,))
        numbers = table.widen()
    ids = jnp.asarray([0, 31, 32, 99, 5, 5])
    packed = pack(table, (-1,))
    assert packed is not None
    found = jax.jit(take, static_argnums=2)(packed, ids, jnp.dtype(jnp.float32))
    np.testing.assert_array_equal(np.asarray(found), np.asarray(numbers[ids]))


def test_a_model_loads_packed_with_the_same_numbers(tiny_llama: Path) -> None:
    checkpoint, dtype = open_checkpoint(tiny_llama), jnp.dtype(jnp.float32)
    plain = outline(checkpoint.config, dtype, None)
    packed = outline(checkpoint.config, dtype, None, packed=True)
    loaded = [
        dict(
            nnx.to_flat_state(
                jax.tree.unflatten(
                    model.structure, load_parameters(checkpoint, model, dtype, progress=False)
                )
            )
        )
        for model in (plain, packed)
    ]
    kinds = set()
    for path, variable in loaded[1].items():
        value, want = variable.get_value(), loaded[0][path].get_value()
        if isinstance(value, Packed):
            kinds.add(path[-1])
            want = want.reshape(-1, value.shape[-1])
            (part,) = value.parts
            np.testing.assert_array_equal(part.columns.rows(jnp.arange(len(want))), want)
        else:
            np.testing.assert_array_equal(value, want)
    assert {"qkv", "out", "gate_up", "down", "embedding"} == kinds
