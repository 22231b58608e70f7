"""Traced programs on disk: JAX's compilation cache keeps what XLA makes, but tracing is half of a
warm start."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Hashable, Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

import flax
import jax
import jaxlib
import numpy as np
from jax.export import DisabledSafetyCheck, deserialize, export
from jax.stages import Lowered

from jaxserve.engine.device.compile_all import Job

PACKAGES = ("jaxserve", "pallas_kernels", "cpu_kernels")  # whose code programs are made of
KEPT = 64  # origins; one takes about half a MiB


class TracedPrograms:
    """Programs of one origin, as StableHLO, a file each. A module's constant that is changed while
    the process runs isn't seen: a script that does so must have a cache of its own.

    The origins used last are kept. A process whose own goes meanwhile traces what it misses.

    Args:
        folder: where all origins are.
        origin: tells apart whatever the programs are made from beside our code, JAX and its
            settings.
    """

    def __init__(self, folder: Path, *origin: object) -> None:
        import cpu_kernels  # compiles and starts threads; a program from disk needs its calls

        # No promise of JAX's that a call stays what it is, but the origin's.
        self._allowed = [DisabledSafetyCheck.custom_call(c) for c in cpu_kernels.CUSTOM_CALLS]
        self._folder = folder / _fingerprint(origin)
        with suppress(OSError):  # what can't be written to can't grow
            self._folder.mkdir(parents=True, exist_ok=True)
            os.utime(self._folder)
            for old in sorted(folder.iterdir(), key=_last_used)[:-KEPT]:
                shutil.rmtree(old, ignore_errors=True)

    def lower(self, key: Hashable, job: Job) -> Lowered:
        """The job's program, traced unless it is on disk under this key."""
        path = self._folder / hashlib.sha256(repr(key).encode()).hexdigest()
        try:
            exported = deserialize(bytearray(path.read_bytes()))
        except Exception:  # not there, or damaged in whatever way
            program = jax.jit(job.function, donate_argnums=job.donated)
            exported = export(program, disabled_checks=self._allowed)(*job.arguments)
            _write(path, bytes(exported.serialize()))
        return jax.jit(exported.call, donate_argnums=job.donated).lower(*job.arguments)


def _last_used(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:  # another process was quicker
        return 0.0


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all; a folder that can't be written to only costs time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(data)
                file.flush()
                os.replace(file.name, path)
            except OSError:
                os.unlink(file.name)
    except OSError:
        return


def _fingerprint(origin: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for package in PACKAGES:
        for folder in map(Path, sys.modules[package].__path__):
            for source in sorted(folder.rglob("*.py")):
                digest.update(f"\n{source.relative_to(folder)}\n".encode() + source.read_bytes())
    libraries = [module.__version__ for module in (jax, jaxlib, flax, np)]
    settings = sorted(jax.config.values.items(), key=str)
    device = jax.devices()[0]
    made_by = (platform.python_version(), libraries, settings, device.platform, device.device_kind)
    digest.update(repr((made_by, *origin)).encode())
    return digest.hexdigest()
