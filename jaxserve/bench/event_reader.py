"""Parses server-sent events from bytes that arrive in pieces of any size."""

from __future__ import annotations


class EventReader:
    """Parses an event stream (WHATWG HTML, section 9.2); event names, ids and comments are
    ignored."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """The data of the events that these bytes complete."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if not line and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
        return events
