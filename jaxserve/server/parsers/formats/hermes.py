"""<tool_call> {"name": ..., "arguments": {...}} </tool_call>, of Hermes, Qwen and others."""

from __future__ import annotations

from jaxserve.server.parsers.call_reader import FoundCall, Offered, read_call
from jaxserve.server.parsers.json_scanner import JsonScanner
from jaxserve.server.parsers.marked_calls import NO_CALL, MarkedCallParser, Reader, Reading
from jaxserve.server.wire.call_grammar import CallLayout


class _HermesReader:
    def __init__(self, offered: Offered) -> None:
        self._offered = offered
        self._scanner, self._at = JsonScanner(), 0
        self._call: FoundCall | None = None

    def read(self, text: str, last: bool) -> Reading | None:
        if self._call is None:
            end = self._scanner.feed(text[self._at :])
            if end is None:
                self._at = len(text)
                return NO_CALL if last or self._scanner.malformed else None
            self._at += end
            self._call = read_call(text[: self._at], self._offered)
            if self._call is None:
                return NO_CALL
        rest, close = text[self._at :].lstrip(), HermesParser.markers[1]
        if rest.startswith(close):
            return Reading([self._call], len(text) - len(rest) + len(close))
        waits = close.startswith(rest) and not last
        return None if waits else Reading([self._call], self._at)


class HermesParser(MarkedCallParser):
    """<tool_call> {"name": ..., "arguments": {...}} </tool_call>, the format of Hermes and Qwen."""

    markers = ("<tool_call>", "</tool_call>")
    layout = CallLayout("<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>")

    def _new_reader(self) -> Reader:
        return _HermesReader(self._offered)
