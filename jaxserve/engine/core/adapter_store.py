"""AdapterStore: the adapters that requests may name, and those that are in host memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from jaxserve.engine.core.protocol import AdapterInfo
from jaxserve.engine.device.adapters.slot_writer import HostAdapter
from jaxserve.errors import EngineError, InvalidRequestError, ModelError

THREADS = 2


@dataclass(frozen=True, slots=True)
class NamedAdapter:
    """An adapter as it was when it was loaded.

    Args:
        digest: of its content; whoever finds another one under the path must not use it.
    """

    name: str
    path: Path
    digest: bytes
    rank: int


class AdapterStore:
    """Adapters by name. Reading them happens in threads; all methods are for one thread.

    Args:
        load: reads a folder; called in a thread.
        most: adapters in host memory, if no more are needed by live requests.
        live: the digests of the adapters of live requests, with their numbers.
    """

    def __init__(
        self,
        load: Callable[[Path], HostAdapter],
        most: int,
        live: Callable[[], Mapping[bytes, int]],
    ) -> None:
        self._load, self._most, self._live = load, most, live
        self._named: dict[str, NamedAdapter] = {}
        self._loaded: OrderedDict[bytes, HostAdapter] = OrderedDict()  # used last at the end
        self._reading: dict[bytes, Future[HostAdapter]] = {}
        self._failures: dict[bytes, EngineError] = {}
        self._pool = ThreadPoolExecutor(THREADS, "adapters")
        self.version = 0  # changes with the names

    @property
    def infos(self) -> tuple[AdapterInfo, ...]:
        """All adapters, in the order in which they were added."""
        named = self._named.values()
        return tuple(AdapterInfo(a.name, str(a.path), a.digest.hex(), a.rank) for a in named)

    def __contains__(self, name: str) -> bool:
        return name in self._named

    def find(self, name: str) -> NamedAdapter:
        """Raises InvalidRequestError for an unknown name."""
        try:
            return self._named[name]
        except KeyError:
            raise InvalidRequestError(f"there is no adapter {name!r}", "model") from None

    def read(self, path: Path) -> Future[HostAdapter]:
        """Begins to read a folder, whatever is in memory."""
        return self._pool.submit(self._load, path)

    def add(self, name: str, path: Path, adapter: HostAdapter) -> None:
        """Gives an adapter that was read a name, in place of the one that had it. Live requests
        keep theirs."""
        self._named[name] = NamedAdapter(name, path, adapter.digest, adapter.rank)
        self._keep(adapter)
        self.version += 1

    def remove(self, name: str) -> None:
        """Takes a name away. Live requests keep their adapter.

        Raises:
            InvalidRequestError: there is no such name.
        """
        self.find(name)
        del self._named[name]
        self.version += 1

    def get(self, adapter: NamedAdapter) -> HostAdapter | None:
        """An adapter in host memory; None if it isn't there. Then it is being read from now on, if
        there is room beside those of live requests.

        Raises:
            EngineError: it can't be read any more, or is another one by now.
        """
        digest = adapter.digest
        if digest in self._loaded:
            self._loaded.move_to_end(digest)
            return self._loaded[digest]
        if (failure := self._failures.pop(digest, None)) is not None:
            raise failure
        if digest not in self._reading and self._has_room():
            self._reading[digest] = self.read(adapter.path)
        return None

    def take_read(self, timeout: float = 0.0) -> None:
        """Keeps what get() has had read and is done. If there is nothing, waits up to `timeout` s
        for something."""
        if timeout and self._reading:
            wait(self._reading.values(), timeout, return_when=FIRST_COMPLETED)
        for digest, reading in list(self._reading.items()):
            if not reading.done():
                continue
            del self._reading[digest]
            try:
                found = reading.result()
                if found.digest != digest:
                    raise ModelError("its files have changed since it was loaded: load it again")
                self._keep(found)
            except Exception as error:  # whatever it is, it concerns the adapter's requests alone
                self._failures[digest] = EngineError(f"the adapter can't be read again: {error}")

    def _has_room(self) -> bool:
        """Whether one more can be in memory, if those that no live request has give way."""
        needed = len(self._live().keys() & self._loaded.keys())
        return needed + len(self._reading) < self._most

    def _keep(self, adapter: HostAdapter) -> None:
        self._loaded[adapter.digest] = adapter
        self._loaded.move_to_end(adapter.digest)
        live = self._live()
        for digest in list(self._loaded):
            if len(self._loaded) <= self._most:
                break
            if digest not in live and digest != adapter.digest:
                del self._loaded[digest]

    def close(self) -> None:
        """Stops the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
