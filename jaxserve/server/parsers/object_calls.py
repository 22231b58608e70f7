"""Formats in which calls are JSON objects, from the beginning of the output on."""

from __future__ import annotations

from typing import ClassVar

from jaxserve.server.parsers.call_reader import Offered, read_bare_call
from jaxserve.server.parsers.json_scanner import JsonScanner
from jaxserve.server.parsers.text_parser import ParsedDelta, content_delta
from jaxserve.server.parsers.tool_parser import ToolParser
from jaxserve.server.wire.call_grammar import REQUIRED_CALLS


class ObjectsParser(ToolParser):
    """Consecutive JSON objects that are calls, from the beginning of the output on. From the first
    text on that is neither a call nor between calls, everything is content.

    _separator: what may come before an object, after the first call. _first: before the first one.
    _end: what may come after the last one.
    """

    _first: ClassVar[str]
    _separator: ClassVar[str]
    _end: ClassVar[str] = ""

    def __init__(self, offered: Offered) -> None:
        super().__init__(offered)
        self._text, self._at = "", 0  # whose kind isn't known yet; how much of it was scanned
        self._scanner: JsonScanner | None = None
        self._begin = 0  # of the object
        self._calls, self._plain = 0, False

    def feed(self, text: str) -> list[ParsedDelta]:
        if self._plain:
            return content_delta(text)
        self._text += text
        deltas: list[ParsedDelta] = []
        while not self._plain and (self._scanner is not None or self._find_object()):
            assert self._scanner is not None
            end = self._scanner.feed(self._text[self._at :])
            self._at = len(self._text) if end is None else self._at + end
            if end is None:
                self._plain = self._scanner.malformed
                break
            call = read_bare_call(self._text[self._begin : self._at], self._offered)
            if call is None:
                self._plain = True
            else:
                deltas += call.deltas()
                self._calls += 1
                self._text, self._at, self._scanner = self._text[self._at :], 0, None
        return deltas + (self._take_rest() if self._plain else [])

    def finish(self) -> list[ParsedDelta]:
        if self._calls and not self._plain and self._text.strip() in ("", self._end):
            return []
        return self._take_rest()

    def _find_object(self) -> bool:
        """Looks for the next object; sets _plain if something else comes."""
        before = self._before(self._text)
        if before is None:
            return False
        self._plain = not self._text.startswith("{", before)
        self._begin = self._at = before
        self._scanner = JsonScanner()
        return not self._plain

    def _take_rest(self) -> list[ParsedDelta]:
        rest, self._text = self._text, ""
        return content_delta(rest)

    def _before(self, text: str) -> int | None:
        """Characters before the next object in what comes after the last one; None if the text is
        too short to tell."""
        mark = self._separator if self._calls else self._first
        bare = text.lstrip()
        inner = bare.removeprefix(mark).lstrip()
        if not inner or mark.startswith(bare) or (self._calls and bare.rstrip() == self._end):
            return None
        return len(text) - len(inner)


class RequiredCallsParser(ObjectsParser):
    """A JSON array of calls and nothing else: the output of the grammar that tool_choice
    "required" sets."""

    layout = REQUIRED_CALLS
    _first, _separator, _end = "[", ",", "]"
