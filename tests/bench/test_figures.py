"""The last line of a benchmark."""

from __future__ import annotations

import json
import math
import re

import pytest

from bench.common.figures import flat, print_figures


def test_nested_figures_become_flat(capsys: pytest.CaptureFixture[str]) -> None:
    print_figures(flat({"a": {"b_ms": 1.5, "c": {"200": 3}}, "rate": math.inf, "note": None}))
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    figures = json.loads(line)
    assert re.fullmatch(r"[0-9a-f]{7,40}\+?|unknown", figures.pop("commit"))
    assert figures == {"a_b_ms": 1.5, "a_c_200": 3, "rate": None, "note": None}


def test_a_nested_figure_is_refused() -> None:
    with pytest.raises(TypeError, match="times_ms is a list"):
        print_figures({"times_ms": [1.0]})  # type: ignore[dict-item]
