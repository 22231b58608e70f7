"""AdapterQueue: holds the requests whose adapter isn't in host memory."""

from __future__ import annotations

from concurrent.futures import Future
from typing import NamedTuple

from jaxserve.engine.core.adapter_store import AdapterStore, NamedAdapter
from jaxserve.engine.core.protocol import Submit
from jaxserve.engine.device.adapters.slot_writer import HostAdapter
from jaxserve.errors import EngineError
from jaxserve.sampling.grammar import Grammar

MAX_OVERTAKEN = 32


class Waiting(NamedTuple):
    """A request, its grammar (done) and its adapter."""

    message: Submit
    grammar: Future[Grammar] | None
    adapter: NamedAdapter


class AdapterQueue:
    """Requests whose adapter is in memory pass those whose adapter finds no room there, but only
    MAX_OVERTAKEN of them in a row: live requests end, and then there is room."""

    def __init__(self, store: AdapterStore) -> None:
        self._store = store
        self._waiting: dict[bytes, list[Waiting]] = {}  # by digest; longest ago first
        self._overtaken = 0

    def __len__(self) -> int:
        """Number of requests that wait."""
        return sum(map(len, self._waiting.values()))

    @property
    def request_ids(self) -> list[str]:
        """Ids of the requests that wait."""
        return [w.message.request_id for several in self._waiting.values() for w in several]

    def put(self, message: Submit, grammar: Future[Grammar] | None) -> HostAdapter | None:
        """A request's adapter, if it is in memory. Otherwise the request waits, and take() returns
        it.

        Raises:
            InvalidRequestError: there is no adapter of that name.
            EngineError: it can't be read any more.
        """
        assert message.adapter is not None
        named = self._store.find(message.adapter)
        if self._overtaken < MAX_OVERTAKEN and named.digest not in self._waiting:
            adapter = self._store.get(named)
            if adapter is not None:
                self._overtaken += bool(self._waiting)
                return adapter
        self._waiting.setdefault(named.digest, []).append(Waiting(message, grammar, named))
        return None

    def take(self, timeout: float = 0.0) -> list[tuple[Waiting, HostAdapter | EngineError]]:
        """Requests whose adapter is in memory or can't be read, with it or the error. If there is
        none, waits up to `timeout` s for one."""
        self._store.take_read(timeout if self._waiting else 0.0)
        done: list[tuple[Waiting, HostAdapter | EngineError]] = []
        for nth, (digest, several) in enumerate(list(self._waiting.items())):
            if nth and self._overtaken >= MAX_OVERTAKEN:
                break
            found: HostAdapter | EngineError | None
            try:
                found = self._store.get(several[0].adapter)
            except EngineError as error:
                found = error
            if found is None:
                continue
            self._overtaken = (
                self._overtaken + len(several) if len(self._waiting) > 1 and nth else 0
            )
            del self._waiting[digest]
            done += [(waiting, found) for waiting in several]
        return done

    def cancel(self, request_id: str) -> None:
        """Forgets a request; unknown ids are ignored."""
        for digest, several in list(self._waiting.items()):
            kept = [w for w in several if w.message.request_id != request_id]
            if not kept:
                del self._waiting[digest]
            elif len(kept) < len(several):
                self._waiting[digest] = kept
        if not self._waiting:
            self._overtaken = 0
