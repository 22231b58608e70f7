"""Files of a cache folder, checked against checksums recorded when they were written.

JAX keeps no checksums of its compilation cache's entries and never replaces an entry: a damaged one
would be compiled again at every start, or even run.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

log = logging.getLogger(__name__)

SUMS = "jaxserve-sums.json"  # file name -> [bytes, CRC-32]
UNKNOWN_KEPT_S = 3600.0  # another engine may be about to record a younger file


def drop_damaged(folder: Path) -> int:
    """Deletes the files of a folder that differ in any byte from what record() found.

    A file without a checksum is deleted too once it is an hour old: a process that ended early has
    left it there. The process that needs a deleted file makes it again.

    Returns:
        How many were deleted.
    """
    known, dropped, old = _read_sums(folder), 0, time.time() - UNKNOWN_KEPT_S
    for file in _files(folder):
        wrong = _sum(file) != known[file.name] if file.name in known else _written(file) < old
        if wrong:
            file.unlink(missing_ok=True)
            dropped += 1
    if dropped:
        log.warning("%s: %d cached files were damaged or unknown: deleted", folder, dropped)
    return dropped


def record(folder: Path, since: float) -> None:
    """Records the checksums of files written since a time.time(); those of other files stay.

    Does nothing if the folder can't be written to.
    """
    if not folder.is_dir():
        return
    try:
        with _locked(folder):  # another engine may be recording its own files
            known, sums = _read_sums(folder), {}
            for file in _files(folder):
                found = _sum(file) if _written(file) >= since else known.get(file.name)
                if found is not None:
                    sums[file.name] = found
            if sums != known:
                write_whole(folder / SUMS, json.dumps(sums).encode())
    except OSError as error:
        log.info("%s: checksums can't be written: %s", folder, error)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps other processes that record checksums out while the context is open."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file atomically: another process sees all of it or nothing.

    Raises:
        OSError: it can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise


def _files(folder: Path) -> list[Path]:
    try:
        return [file for file in folder.iterdir() if file.name != SUMS and file.is_file()]
    except OSError:
        return []


def _read_sums(folder: Path) -> dict[str, list[int]]:
    try:
        sums = json.loads((folder / SUMS).read_bytes())
    except (OSError, ValueError):
        return {}
    return sums if isinstance(sums, dict) else {}


def _written(file: Path) -> float:
    """When a file was written, by time.time(); 0 if it no longer exists."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _sum(file: Path) -> list[int] | None:
    try:
        data = file.read_bytes()
    except OSError:
        return None
    return [len(data), zlib.crc32(data)]
