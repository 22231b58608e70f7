"""The folder in which numba keeps the kernels' machine code, checked against checksums.

Numba loads whatever it finds there: a file that was cut off ends the process at every start, and
one with a wrong byte may be run.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numba

log = logging.getLogger(__name__)

SUMS = "sums.json"  # file -> SHA-256, beside the folders that numba makes


@contextmanager
def checked_cache() -> Iterator[None]:
    """While the context is open, numba loads functions from the folder and keeps new ones there.

    Damaged and unknown files are deleted first, so that numba makes them anew. Other processes wait
    meanwhile, and find what this one has compiled.
    """
    folder, original = _folder(), numba.config.CACHE_DIR
    with _locked(folder):
        if not any(folder.iterdir()):
            log.info("compiling kernels for this CPU, once: 10 s")
        known = _read_sums(folder)
        _drop_damaged(folder, known)
        # Numba reads the setting when it decorates a function.
        numba.config.CACHE_DIR = str(folder)
        try:
            yield
        finally:
            numba.config.CACHE_DIR = original
        if (sums := _sums(folder)) != known:
            _write_sums(folder, sums)


def _folder() -> Path:
    """The folder for compiled code of this version: the first one that can be written to.

    Numba recompiles a function when its own file changes, but not when a function that it calls
    changes in another file. The folder is therefore named after a hash of all source files.
    """
    package = Path(__file__).parent
    sources = b"".join(path.read_bytes() for path in sorted(package.glob("*.py")))
    version = hashlib.sha256(sources).hexdigest()[:16]
    home = os.path.expanduser("~")  # unchanged where the user has no home
    places = numba.config.CACHE_DIR, package / "__pycache__", f"{home}/.cache/jaxserve/numba"
    for folder in (Path(place) / version for place in places if os.path.isabs(place)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    temporary = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return Path(temporary)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps other processes out of the folder while the context is open."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _drop_damaged(folder: Path, known: dict[str, str]) -> None:
    wrong = [name for name, found in _sums(folder).items() if known.get(name) != found]
    for name in wrong:
        (folder / name).unlink(missing_ok=True)
    if wrong:
        log.warning(
            "%s: %d files of the kernels' machine code were damaged or unknown; they are deleted "
            "and compiled again",
            folder,
            len(wrong),
        )


def _sums(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file != folder / SUMS
    }


def _read_sums(folder: Path) -> dict[str, str]:
    try:
        sums = json.loads((folder / SUMS).read_bytes())
    except (OSError, ValueError):
        return {}
    return sums if isinstance(sums, dict) else {}


def _write_sums(folder: Path, sums: dict[str, str]) -> None:
    """Atomically, so that a process that is killed here leaves no half of a file."""
    fresh = folder / f"{SUMS}.new"
    try:
        fresh.write_text(json.dumps(sums))
        os.replace(fresh, folder / SUMS)
    except OSError as error:
        log.info("%s: checksums can't be written: %s", folder, error)
