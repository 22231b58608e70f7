"""AdapterFolder: follows a folder whose folders are adapters, each of its name."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from jaxserve.engine.core.adapter_store import AdapterStore
from jaxserve.engine.device.adapters.slot_writer import HostAdapter

log = logging.getLogger(__name__)

SCAN_S = 1.0  # between looks at the folder
FILES = ("adapter_config.json", "adapter_model.safetensors")

Signature = tuple[tuple[int, int, int], ...]  # of each file: inode, time of change, size


class _Read(NamedTuple):
    path: Path
    signature: Signature
    result: Future[HostAdapter]


class AdapterFolder:
    """Adds adapters that appear, reads those whose files change again, and takes away the names of
    those that disappear. A folder is read when its files were the same in two looks in a row, so
    that one that is being copied is left alone.

    Names that others have given, by a flag or the API, are left alone.
    """

    def __init__(
        self, folder: Path, store: AdapterStore, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._store, self._clock = folder, store, clock
        self._pool = ThreadPoolExecutor(1, "adapter-folder")
        self._scan: Future[dict[str, Signature]] | None = None
        self._seen: dict[str, Signature] = {}  # in the last look
        self._handled: dict[str, Signature] = {}  # that were read, or are being read
        self._own: set[str] = set()  # names that it has given
        self._reads: dict[str, _Read] = {}
        self._scanned_at = -SCAN_S

    def read_all(self) -> None:
        """Adds what is there now; waits for it."""
        self._seen = self._look()
        self._compare(self._seen)
        for name in list(self._reads):
            self._finish(name)

    def poll(self) -> None:
        """Takes in what threads have found, and has them look again when it is time."""
        for name in [name for name, read in self._reads.items() if read.result.done()]:
            self._finish(name)
        if self._scan is not None and self._scan.done():
            try:
                found = self._scan.result()
            except OSError as error:
                log.warning("the folder of adapters %s can't be read: %s", self._folder, error)
                found = self._seen
            self._scan = None
            self._compare(found)
        if self._scan is None and self._clock() - self._scanned_at >= SCAN_S:
            self._scanned_at = self._clock()
            self._scan = self._pool.submit(self._look)

    def _look(self) -> dict[str, Signature]:
        """The signatures of all adapters, by name."""
        found = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                try:
                    stats = [os.stat(os.path.join(entry.path, file)) for file in FILES]
                except OSError:
                    continue  # not an adapter, or not yet
                found[entry.name] = tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in stats)
        return found

    def _compare(self, found: dict[str, Signature]) -> None:
        seen, self._seen = self._seen, found
        for name in [name for name in self._own if name not in found]:
            self._own.discard(name)
            if name in self._store:  # unless the API has taken it away
                self._store.remove(name)
            log.info("adapter %s is gone", name)
        self._handled = {name: s for name, s in self._handled.items() if name in found}
        for name, signature in sorted(found.items()):
            settled = seen.get(name) == signature and self._handled.get(name) != signature
            if not settled or name in self._reads:
                continue
            self._handled[name] = signature
            if name in self._store and name not in self._own:
                log.warning("%s: another adapter is named %s", self._folder / name, name)
                continue
            path = self._folder / name
            self._reads[name] = _Read(path, signature, self._store.read(path))

    def _finish(self, name: str) -> None:
        read = self._reads.pop(name)
        try:
            adapter = read.result.result()
        except Exception as error:  # whatever it is, the server goes on without the adapter
            log.warning("adapter %s can't be loaded: %s", name, error)
            return
        if name in self._store and name not in self._own:
            return
        self._own.add(name)
        self._store.add(name, read.path, adapter)
        log.info("adapter %s is loaded", name)

    def close(self) -> None:
        """Stops the thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)
