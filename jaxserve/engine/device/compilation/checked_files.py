"""Files of a cache folder, checked against the sums that were recorded when they were written.

JAX reads an entry of its compilation cache without a checksum and never replaces one: a damaged
entry would be compiled again at every start, or run as it is.
"""

from __future__ import annotations

import json
import logging
import os
import time
import zlib
from pathlib import Path
from tempfile import NamedTemporaryFile

log = logging.getLogger(__name__)

SUMS = "jaxserve-sums.json"  # file name -> [bytes, CRC-32]
UNKNOWN_KEPT_S = 3600.0  # a younger file may be one that another engine is about to record


def drop_damaged(folder: Path) -> int:
    """Deletes the files of a folder that differ in any byte from what record() has seen.

    A file without a sum is deleted too once it is an hour old: a process that ended early has left
    it there. What is deleted is made anew by whoever misses it.

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
    """Records the sums of files that were written since a time.time(); those of others stay.

    A folder that can't be written to is left as it is.
    """
    known, sums = _read_sums(folder), {}
    for file in _files(folder):
        found = _sum(file) if _written(file) >= since else known.get(file.name)
        if found is not None:
            sums[file.name] = found
    if sums == known:
        return
    try:
        write_whole(folder / SUMS, json.dumps(sums).encode())
    except OSError as error:
        log.info("%s: no sums are kept: %s", folder, error)


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file so that another process sees all of it or nothing.

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
    """When a file was written, on time.time()'s clock; 0 if it is gone."""
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
