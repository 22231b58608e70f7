"""Cache folders whose files are damaged, unknown or unreadable."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from jaxserve.engine.device.compilation.checked_files import (
    SUMS,
    UNKNOWN_KEPT_S,
    drop_damaged,
    record,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).write_bytes(name.encode() * 1000)
    record(tmp_path, since=0.0)
    return tmp_path


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()} - {SUMS}


def test_unchanged_files_stay(folder: Path) -> None:
    assert drop_damaged(folder) == 0
    assert names(folder) == {"a", "b", "c", "d"}


def test_files_that_differ_in_a_byte_are_deleted(folder: Path) -> None:
    (folder / "a").write_bytes(b"")
    (folder / "b").write_bytes(b"b" * 500)
    (folder / "c").write_bytes(b"c" * 999 + b"d")
    assert drop_damaged(folder) == 3
    assert names(folder) == {"d"}


def test_files_without_a_checksum_are_deleted_once_they_are_old(folder: Path) -> None:
    for name, age in (("new", 0.0), ("old", 2 * UNKNOWN_KEPT_S)):
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, (time.time() - age,) * 2)
    assert drop_damaged(folder) == 1
    assert names(folder) == {"a", "b", "c", "d", "new"}


def test_only_new_files_are_recorded_again(folder: Path) -> None:
    (folder / "a").write_bytes(b"damaged since")
    os.utime(folder / "a", (1000.0, 1000.0))
    (folder / "new").write_bytes(b"x")
    record(folder, since=2000.0)
    assert drop_damaged(folder) == 1
    assert names(folder) == {"b", "c", "d", "new"}


@pytest.mark.parametrize("sums", [b"", b"[]", b"{", b"\xff"])
def test_damaged_sums_count_as_none(folder: Path, sums: bytes) -> None:
    (folder / SUMS).write_bytes(sums)
    assert drop_damaged(folder) == 0
    for name in names(folder):
        os.utime(folder / name, (1000.0, 1000.0))
    assert drop_damaged(folder) == 4


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert drop_damaged(tmp_path / "none") == 0
    record(tmp_path / "none", since=0.0)
