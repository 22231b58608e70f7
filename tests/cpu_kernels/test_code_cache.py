"""The folder of compiled code: where it is, and what a process does with damaged files in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import cpu_kernels
from cpu_kernels import code_cache

# Loads all kernels, and prints what two of them compute.
CHILD = """
import cpu_kernels, numpy as np
x = np.linspace(-1, 1, 3 * 256, dtype=np.float32).reshape(3, 256)
print(np.asarray(cpu_kernels.linear(x, x)).tobytes().hex())
print(np.asarray(cpu_kernels.normalize(x, 1e-6)).tobytes().hex())
"""


def test_the_cache_folder_is_the_first_writable_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_cache, "__file__", str(tmp_path / "__init__.py"))
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    assert code_cache._folder().parent == tmp_path / "__pycache__"
    shutil.rmtree(tmp_path / "__pycache__")
    (tmp_path / "__pycache__").touch()
    assert code_cache._folder().parent == home / ".cache/jaxserve/numba"
    shutil.rmtree(home)
    home.touch()
    assert code_cache._folder().parent == Path(tempfile.gettempdir())
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user without a home
    assert code_cache._folder().parent == Path(tempfile.gettempdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the folder that this process has loaded its kernels from."""
    own = code_cache._folder()
    return Path(shutil.copytree(own, tmp_path / own.name))


def run_child(folder: Path) -> tuple[list[str], str]:
    """What a process with the folder as its cache prints, and its messages."""
    environ = os.environ | {
        "NUMBA_CACHE_DIR": str(folder.parent),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", CHILD]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def flip_a_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def add_an_unknown_file(file: Path) -> None:
    file.with_name("unknown" + file.suffix).write_bytes(b"x")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("nbi", empty),
        ("nbi", cut),
        ("nbc", cut),
        ("nbc", flip_a_byte),
        ("nbc", add_an_unknown_file),
    ],
)
def test_damaged_files_are_made_anew_and_replaced(
    folder: Path, damage: Callable[[Path], None], kind: str
) -> None:
    x = np.linspace(-1, 1, 3 * 256, dtype=np.float32).reshape(3, 256)
    right = [
        np.asarray(kernel).tobytes().hex()
        for kernel in (cpu_kernels.linear(x, x), cpu_kernels.normalize(x, 1e-6))
    ]
    (file,) = folder.rglob(f"normalize.normalize_part-*.{'1.' * (kind == 'nbc')}{kind}")
    before = set(folder.rglob("*.nb?"))
    damage(file)
    found, messages = run_child(folder)
    assert found == right
    assert "1 files of the kernels' machine code were damaged or unknown" in messages
    assert set(folder.rglob("*.nb?")) == before


@pytest.mark.slow
def test_missing_files_are_made_anew(folder: Path) -> None:
    # Files of other processors, which other tests may have made, aren't made anew.
    normalize = set(folder.rglob("normalize.*.1.nbc"))
    assert normalize
    for file in folder.rglob("normalize.*.nbc"):
        file.unlink()
    for _ in range(2):  # what the first process makes is whole for the second
        _, messages = run_child(folder)
        assert "damaged" not in messages
        assert set(folder.rglob("normalize.*.nbc")) == normalize


def test_without_checksums_every_file_is_made_anew(folder: Path) -> None:
    cut(folder / code_cache.SUMS)
    code_cache._drop_damaged(folder, code_cache._read_sums(folder))
    assert not list(folder.rglob("*.nb?"))
