"""Adapters on a product: against NumPy in float64, and the same bits in any company."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cpu_kernels
from cpu_kernels.tiles import TILE

ADAPT = jax.jit(cpu_kernels.adapt)
LARGEST, COUNT = 24, 3


def arrays(
    inputs: int, owner: np.ndarray, ranks: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The kernel's arrays for random adapters, and each one's matrix [I, O].

    Args:
        owner: [O], the part of each output.
        ranks: [G, N], of each group's parts.
    """
    random = np.random.default_rng(inputs)
    outputs, columns = len(owner), TILE.columns
    count, parts = ranks.shape
    panels = -(-outputs // columns)
    padded = np.pad(owner, (0, panels * columns - outputs), mode="edge").reshape(panels, columns)
    sets = [sorted(set(row.tolist())) for row in padded]
    most = max(map(len, sets))
    touched = np.array([s + [-1] * (most - len(s)) for s in sets], np.int32)
    spans = np.zeros((count, parts + 1), np.int32)
    spans[:, 1:] = np.cumsum(ranks, 1)
    down = np.full((count, inputs * LARGEST * parts + columns), np.nan, np.float32)
    up = np.full((count, panels, most, LARGEST, columns), np.nan, np.float32)
    wanted = []
    for g in range(count):
        rank = spans[g, -1]
        a = random.standard_normal((inputs, rank)).astype(np.float32)
        b = random.standard_normal((rank, outputs)).astype(np.float32)
        down[g, : inputs * rank] = a.reshape(-1)
        part_of = np.repeat(np.arange(parts), ranks[g])
        b[part_of[:, None] != owner[None, :]] = 0
        wide = np.pad(b, ((0, 0), (0, panels * columns - outputs)))
        for p in range(panels):
            for m, part in enumerate(sets[p]):
                rows = wide[spans[g, part] : spans[g, part + 1], p * columns : (p + 1) * columns]
                up[g, p, m, : len(rows)] = rows
        wanted.append(a.astype(np.float64) @ b)
    return [down, up, spans, touched], wanted


def sorted_rows(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(groups, kind="stable").astype(np.int32)
    return order, groups[order].astype(np.int32)


@pytest.mark.parametrize("inputs", [1, 48, 700])
@pytest.mark.parametrize("outputs", [1, 40, 256])
@pytest.mark.parametrize("parts", [1, 3])
def test_rows_of_several_adapters_and_of_none(inputs: int, outputs: int, parts: int) -> None:
    owner = np.arange(outputs) // 8 % parts
    ranks = np.array([[0, 5, 24], [1, 16, 8], [24, 24, 0]])[:, :parts]
    stack, wanted = arrays(inputs, owner, ranks)
    random = np.random.default_rng(1)
    groups = random.integers(0, COUNT + 1, 90)
    x, y = (random.standard_normal((90, n)).astype(np.float32) for n in (inputs, outputs))
    order, kinds = sorted_rows(groups)
    got = np.asarray(ADAPT(y, x, order, kinds, *stack))
    for row, group in enumerate(groups):
        if group == COUNT or not ranks[group].any():
            np.testing.assert_array_equal(got[row], y[row])
        else:
            want = y[row] + x[row].astype(np.float64) @ wanted[group]
            np.testing.assert_allclose(got[row], want, rtol=1e-4, atol=1e-4 * np.sqrt(inputs))
    for rows in (slice(1), slice(7, 9), slice(20, 70), slice(89, 90)):
        order, kinds = sorted_rows(groups[rows])
        alone = np.asarray(ADAPT(y[rows], x[rows], order, kinds, *stack))
        np.testing.assert_array_equal(alone, got[rows])
    np.testing.assert_array_equal(np.asarray(ADAPT(y, x, *sorted_rows(groups), *stack)), got)


def test_rows_that_are_shrunk_already() -> None:
    owner = np.zeros(40, np.int32)
    stack, _ = arrays(8, owner, np.array([[4], [0], [24]]))
    random = np.random.default_rng(2)
    groups = np.array([2, 0, 3, 1, 2])
    low = random.standard_normal((5, LARGEST)).astype(np.float32)
    y = random.standard_normal((5, 40)).astype(np.float32)
    stack[0] = np.zeros((COUNT, 0), np.float32)
    got = np.asarray(ADAPT(y, low, *sorted_rows(groups), *stack))
    for row, (group, rank) in enumerate(zip(groups, (24, 4, 0, 0, 24), strict=True)):
        columns = (
            stack[1][group, :, 0].swapaxes(0, 1).reshape(LARGEST, -1)[:rank, :40] if rank else None
        )
        want = y[row] if columns is None else y[row] + low[row, :rank] @ columns
        np.testing.assert_allclose(got[row], want, rtol=1e-4, atol=1e-4)


def test_the_product_itself_stays_where_it_is_read_again() -> None:
    stack, _ = arrays(8, np.zeros(40, np.int32), np.array([[4], [2], [24]]))
    y, x = jnp.ones((4, 40)), jnp.ones((4, 8))
    order, kinds = sorted_rows(np.array([0, 1, 2, 3]))

    @jax.jit
    def both(y: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = y * 2
        return y, cpu_kernels.adapt(y, x, order, kinds, *map(jnp.asarray, stack))

    kept, adapted = both(y)
    np.testing.assert_array_equal(np.asarray(kept), 2)
    assert (np.asarray(adapted)[:3] != 2).any()


def test_other_shapes_are_refused() -> None:
    stack, _ = arrays(8, np.zeros(40, np.int32), np.array([[4]]))
    order, kinds = sorted_rows(np.array([0, 0]))
    with pytest.raises(ValueError, match="don't fit together"):
        ADAPT(np.zeros((2, 40), np.float32), np.zeros((2, 9), np.float32), order, kinds, *stack)
    with pytest.raises(ValueError, match="must be float32"):
        ADAPT(np.zeros((2, 40), np.float16), np.zeros((2, 8), np.float32), order, kinds, *stack)
