"""The last line of every benchmark: its figures as one flat JSON object."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxserve.bench.report import Figure, Figures, json_line


def flat(nested: Mapping[str, Any], prefix: str = "") -> Figures:
    """The values of nested mappings, each under its keys joined by "_"."""
    figures: Figures = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            figures |= flat(value, f"{name}_")
        else:
            figures[name] = value
    return figures


def print_figures(figures: Mapping[str, Figure]) -> None:
    """Prints one line of JSON, with the commit that the figures are of; infinities, which JSON
    lacks, are null.

    Args:
        figures: by names that end in their unit, as `ttft_ms` or `wasted_percent`; ratios, shares
            (0 to 1) and plain counts say what they are.

    Raises:
        TypeError: a value is no plain number, text, truth value or None.
    """
    for name, value in figures.items():
        if not isinstance(value, Figure):
            raise TypeError(f"{name} is a {type(value).__name__}: figures must be flat")
    print(json_line({**figures, "commit": commit()}), flush=True)


def commit() -> str:
    """The commit of this clone, with "+" if files differ from it; "unknown" without git."""
    words = ("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+")
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
