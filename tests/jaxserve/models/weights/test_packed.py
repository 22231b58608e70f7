"""Float matrices that the engine packs for the CPU kernels when it loads them."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from checkpoints import open_checkpoint
from jaxserve.engine.device.model_outline import outline
from jaxserve.engine.startup.loader import load_parameters
from jaxserve.models.weights import Packed, linear, take


def test_products_have_the_bits_of_the_float_matrix() -> None:
    random = np.random.default_rng(0)
    kernel = jnp.asarray(random.standard_normal((2, 5, 9, 3, 8)), jnp.float32)  # [*O, *I]
    x = jnp.asarray(random.standard_normal((4, 3, 8)), jnp.float32)
    packed = Packed.of(kernel, (2, 5, 9))
    assert packed.shape == (2, 5, 9, 24)
    product = jax.jit(linear)(x, packed)
    assert product.shape == (4, 2, 5, 9)
    flat = kernel.reshape(90, 24)
    np.testing.assert_array_equal(product.reshape(4, -1), linear(x.reshape(4, -1), flat))
    np.testing.assert_allclose(product.reshape(4, -1), x.reshape(4, -1) @ flat.T, rtol=1e-4)


def test_rows_of_a_packed_table_are_its_own() -> None:
    table = jnp.asarray(np.random.default_rng(0).standard_normal((100, 24)), jnp.float32)
    ids = jnp.asarray([0, 31, 32, 99, 5, 5])
    found = take(Packed.of(table, (100,)), ids, jnp.dtype(jnp.float32))
    np.testing.assert_array_equal(found, table[ids])


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
            rows = value.columns.swapaxes(1, 2).reshape(-1, value.shape[-1])
            want = want.reshape(-1, value.shape[-1])
            np.testing.assert_array_equal(rows[: len(want)], want)
        else:
            np.testing.assert_array_equal(value, want)
    assert {"qkv", "out", "gate_up", "down", "embedding"} == kinds
