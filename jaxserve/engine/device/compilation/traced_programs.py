"""TracedPrograms: traced programs on disk.

JAX's compilation cache keeps only what XLA compiles, and tracing is half of a warm start's time.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
from collections.abc import Hashable, Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import flax
import jax
import jaxlib
import numpy as np
from jax.export import DisabledSafetyCheck, Exported, deserialize, export
from jax.stages import Lowered

from jaxserve.engine.device.compilation.checked_files import write_whole
from jaxserve.engine.device.compilation.compile_jobs import CompileJob

log = logging.getLogger(__name__)

_DIGEST_BYTES = 32  # SHA-256, in front of a program
PACKAGES = ("jaxserve", "pallas_kernels", "cpu_kernels")  # programs are made of their code
KEPT = 64  # origins; each takes about half a MiB


class TracedPrograms:
    """Programs of one origin, as StableHLO, a file each.

    An origin is our source code, JAX with its settings, and what the caller names. A script that
    changes a module's constant at run time isn't noticed, so it must use another cache folder.

    Only the KEPT origins used last stay on disk. A process whose origin is deleted while it runs
    traces what it misses.

    Args:
        folder: has a folder for each origin.
        origin: whatever else the programs depend on.
    """

    def __init__(self, folder: Path, *origin: object) -> None:
        import cpu_kernels  # late, as it compiles and starts threads; programs on disk call it

        # JAX doesn't promise that custom calls stay compatible; within one origin they do.
        self._allowed = [DisabledSafetyCheck.custom_call(c) for c in cpu_kernels.CUSTOM_CALLS]
        self._folder = folder / _fingerprint(origin)
        with suppress(OSError):  # a folder that can't be written to needs no cleaning
            self._folder.mkdir(parents=True, exist_ok=True)
            os.utime(self._folder)
            for old in sorted(folder.iterdir(), key=_last_used)[:-KEPT]:
                shutil.rmtree(old, ignore_errors=True)

    def lower(self, key: Hashable, job: CompileJob) -> Lowered:
        """The job's program, traced unless it is on disk under this key."""
        path = self._folder / hashlib.sha256(repr(key).encode()).hexdigest()
        exported = _read(path)
        if exported is None:
            program = jax.jit(job.function, donate_argnums=job.donated)
            exported = export(program, disabled_checks=self._allowed)(*job.arguments)
            data = bytes(exported.serialize())
            with suppress(OSError):  # a folder that can't be written to only costs time
                write_whole(path, hashlib.sha256(data).digest() + data)
        return jax.jit(exported.call, donate_argnums=job.donated).lower(*job.arguments)


def _last_used(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:  # another process has deleted it
        return 0.0


def _read(path: Path) -> Exported | None:
    """A program on disk; None if it doesn't exist, or differs in any byte from what was written."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    digest, data = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
    if hashlib.sha256(data).digest() != digest:
        log.warning("%s: the traced program is damaged and is traced again", path)
        return None
    return deserialize(bytearray(data))


def _fingerprint(origin: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for package in PACKAGES:
        spec = find_spec(package)  # it need not be imported yet
        assert spec is not None
        for folder in map(Path, spec.submodule_search_locations or ()):
            for source in sorted(folder.rglob("*.py")):
                digest.update(f"\n{source.relative_to(folder)}\n".encode() + source.read_bytes())
    libraries = [module.__version__ for module in (jax, jaxlib, flax, np)]
    settings = sorted(jax.config.values.items(), key=str)
    device = jax.devices()[0]
    versions = (platform.python_version(), libraries, settings, device.platform, device.device_kind)
    digest.update(repr((versions, *origin)).encode())
    return digest.hexdigest()
