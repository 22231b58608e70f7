"""Formats in which a marker begins each call."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol

from jaxserve.server.parsers.call_reader import (
    FoundCall,
    Offered,
    read_call,
)
from jaxserve.server.parsers.json_scanner import JsonScanner
from jaxserve.server.parsers.text_parser import ParsedDelta, content_delta, split_at_marker
from jaxserve.server.parsers.tool_parser import ToolParser


class Reading(NamedTuple):
    """What a reader has found after a marker.

    Args:
        calls: empty if the text isn't a call.
        end: where the text after them begins.
        goes_on: whether more calls may follow without another marker.
    """

    calls: list[FoundCall]
    end: int
    goes_on: bool = False


NO_CALL = Reading([], 0)


class Reader(Protocol):
    """Reads what follows one marker, or the last calls if these go on."""

    def read(self, text: str, last: bool) -> Reading | None:
        """What was found; None while that isn't known.

        Args:
            text: all text after the marker or the last calls so far.
            last: there is no more text.
        """


class MarkedCallParser(ToolParser):
    """Content, with calls that begin with a marker. White space around calls is dropped.

    begins: markers that begin calls, if there is more than the first one.
    """

    begins: ClassVar[tuple[str, ...]] = ()

    def __init__(self, offered: Offered) -> None:
        super().__init__(offered)
        self._text = ""  # whose kind isn't known yet; after the marker if there is a reader
        self._before = ""  # white space and the marker, until a call follows
        self._reader: Reader | None = None
        self._called = False

    def feed(self, text: str) -> list[ParsedDelta]:
        self._text += text
        return self._parse(last=False)

    def finish(self) -> list[ParsedDelta]:
        deltas = self._parse(last=True)
        rest = self._text.rstrip() if self._called else self._text
        return deltas + content_delta(rest)

    def _parse(self, last: bool) -> list[ParsedDelta]:
        deltas: list[ParsedDelta] = []
        while self._reader is not None or self._find_marker(deltas):
            assert self._reader is not None
            reading = self._reader.read(self._text, last)
            if reading is None:
                break
            if reading.calls:
                self._called, self._before = True, ""
            for call in reading.calls:
                deltas += call.deltas()
            deltas += content_delta(self._before)  # there was no call
            self._before, self._text = "", self._text[reading.end :]
            if not reading.goes_on:
                self._reader = None
        return deltas

    def _find_marker(self, deltas: list[ParsedDelta]) -> bool:
        before, marker, after = split_at_marker(self._text, self.begins or self.markers[:1])
        kept = before.rstrip()
        deltas += content_delta(kept)
        spaces = before[len(kept) :]
        if marker is None:
            self._text = spaces + after
            return False
        self._before, self._text, self._reader = spaces + marker, after, self._new_reader()
        return True

    def _new_reader(self) -> Reader:
        raise NotImplementedError


class ArrayReader:
    """Reads a JSON array of calls, one by one, up to the first item that is none.

    Args:
        end: a marker that may follow the array, and then belongs to it.
    """

    def __init__(self, offered: Offered, end: str = "") -> None:
        self._offered, self._end = offered, end
        self._scanner: JsonScanner | None = None  # of an object
        self._begin = self._at = 0  # of the object; how much of the text was scanned
        self._calls = 0

    def read(self, text: str, last: bool) -> Reading | None:
        if self._scanner is None:
            bare = text.lstrip()
            if self._calls and bare.startswith("]"):
                rest = bare[1:]
                if self._end and self._end.startswith(rest) and rest != self._end and not last:
                    return None
                marker = len(self._end) if rest.startswith(self._end) else 0
                return Reading([], len(text) - len(rest) + marker)
            mark, inner = "," if self._calls else "[", bare[1:].lstrip()
            if mark.startswith(bare[:1]) and not inner:
                return NO_CALL if last else None
            if bare[0] != mark or inner[0] != "{":
                return NO_CALL
            self._begin = self._at = len(text) - len(inner)
            self._scanner = JsonScanner()
        end = self._scanner.feed(text[self._at :])
        if end is None:
            self._at = len(text)
            return NO_CALL if last or self._scanner.malformed else None
        call = read_call(text[self._begin : self._at + end], self._offered)
        if call is None:
            return NO_CALL
        self._calls, self._scanner = self._calls + 1, None
        return Reading([call], self._at + end, goes_on=True)
