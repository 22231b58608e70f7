"""ResponseStore: the last responses and their conversations, for requests that go on from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from jaxserve.config import MIB

MAX_BYTES = 64 * MIB  # of all that is stored


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """Args: body: the response as JSON. items: the whole conversation as JSON, output included."""

    body: bytes
    items: bytes

    def conversation(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = msgspec.json.decode(self.items)
        return items


class ResponseStore:
    """Responses in this process's memory, each for the API key that asked for it; the one that was
    used least recently goes first.

    Args:
        most: responses; 0 stores none.
    """

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._stored: dict[tuple[str | None, str], StoredResponse] = {}  # least recently used first

    @property
    def is_on(self) -> bool:
        return self._most > 0

    def put(self, key: str | None, response_id: str, body: Any, items: list[Any]) -> None:
        """Args: key: whose response it is."""
        if not self.is_on:
            return
        stored = StoredResponse(msgspec.json.encode(body), msgspec.json.encode(items))
        self._stored[key, response_id] = stored
        self._bytes += len(stored.body) + len(stored.items)
        while len(self._stored) > self._most or self._bytes > MAX_BYTES:
            self._remove(next(iter(self._stored)))

    def get(self, key: str | None, response_id: str) -> StoredResponse | None:
        stored = self._stored.pop((key, response_id), None)
        if stored is not None:
            self._stored[key, response_id] = stored
        return stored

    def delete(self, key: str | None, response_id: str) -> bool:
        """Whether it was there."""
        found = (key, response_id) in self._stored
        if found:
            self._remove((key, response_id))
        return found

    def _remove(self, name: tuple[str | None, str]) -> None:
        stored = self._stored.pop(name)
        self._bytes -= len(stored.body) + len(stored.items)
