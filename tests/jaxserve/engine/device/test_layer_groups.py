"""Cutting a stack of layers into groups that share programs."""

from __future__ import annotations

import pytest

from jaxserve.engine.device.layer_groups import cut_layers


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("a" * 30, [5] * 6),  # of 4 to 8, the smallest size that divides evenly
        ("a" * 16, [4] * 4),
        ("aaaaag" * 3, [6] * 3),  # five local layers and a global one
        ("ag" * 12, [4] * 6),
        ("aaaaag" * 4 + "aa", [6] * 4 + [2]),
        ("a" * 3, [3]),
        ("a", [1]),
    ],
)
def test_runs_that_are_alike(layers: str, expected: list[int]) -> None:
    runs = cut_layers(layers, range(4, 9))
    assert [len(run) for run in runs] == expected
    assert [i for run in runs for i in run] == list(range(len(layers)))


def test_all_layers_in_one_group() -> None:
    assert cut_layers("ag" * 5, range(10, 11)) == [range(10)]
