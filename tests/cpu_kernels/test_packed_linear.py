"""Products with packed matrices: the bits of the unpacked ones', whatever the rows and the tile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cpu_kernels
from cpu_kernels import tiles

LINEAR = jax.jit(cpu_kernels.linear)
PACKED = jax.jit(lambda x, w: cpu_kernels.packed_linear(x, cpu_kernels.pack(w)))


def arrays(tokens: int, inputs: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(tokens * inputs + outputs)
    shapes = (tokens, inputs), (outputs, inputs)
    x, w = (random.standard_normal(shape, np.float32) for shape in shapes)
    return x, w


def test_packing_keeps_every_number_and_pads_with_zeros() -> None:
    _, w = arrays(1, 5, 70)
    columns = np.asarray(cpu_kernels.pack(jnp.asarray(w)).arrays["codes"])
    rows = columns.swapaxes(1, 2).reshape(-1, 5)
    np.testing.assert_array_equal(rows[:70], w)
    assert rows.shape[0] % tiles.TILE.columns == 0
    assert not rows[70:].any()


@pytest.mark.parametrize("inputs", [1, 7, 200, 576, 1024])
@pytest.mark.parametrize("outputs", [1, 31, 32, 33, 256, 1024])
def test_rows_have_the_bits_of_the_unpacked_product(inputs: int, outputs: int) -> None:
    x, w = arrays(83, inputs, outputs)
    want = np.asarray(LINEAR(x, w))
    np.testing.assert_allclose(want, x.astype(np.float64) @ w.T, rtol=1e-4, atol=1e-5 * inputs)
    for rows in (slice(None), slice(1), slice(5, 7), slice(20, 29), slice(82, 83)):
        np.testing.assert_array_equal(np.asarray(PACKED(x[rows], w)), want[rows])


def test_many_rows_have_the_bits_of_one() -> None:
    """So many that they are multiplied in blocks, some of them padding."""
    x, w = arrays(700, 2100, 40)
    x[650:] = 0
    whole = np.asarray(PACKED(x, w))
    assert not whole[650:].any()
    for row in (0, 63, 64, 300, 649):
        np.testing.assert_array_equal(np.asarray(PACKED(x[row : row + 1], w))[0], whole[row])


def test_a_row_of_nan_leaves_the_others_alone() -> None:
    x, w = arrays(20, 300, 64)
    want = np.asarray(PACKED(x, w))
    x[7] = np.nan
    got = np.asarray(PACKED(x, w))
    assert np.isnan(got[7]).all()
    others = np.r_[:7, 8:20]
    np.testing.assert_array_equal(got[others], want[others])


def test_the_tile_is_the_first_that_the_processor_can_compute() -> None:
    assert tiles.choose(frozenset({"avx2", "fma"})).lanes == 8
    assert tiles.choose(frozenset({"avx2", "fma", "avx512f", "avx512vl"})).lanes == 16
    for _, tile in tiles.TILES:
        assert tile.columns % tiles.GRAIN == tile.columns % tile.lanes == 0


@pytest.mark.slow
def test_the_kernels_of_a_processor_without_avx512() -> None:
    """This directory's other tests again, in a process that compiles for AVX2."""
    if "avx2" not in tiles.processor_features():
        pytest.skip("this processor has no AVX2")
    other = {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt,+sse4.2,+lzcnt,+movbe",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
    ]
    run = subprocess.run(
        [*command, str(Path(__file__).parent)],
        env=os.environ | other,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert run.returncode == 0, run.stdout + run.stderr
