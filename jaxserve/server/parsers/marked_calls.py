"""Formats in which a marker begins each call."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Collection
from typing import NamedTuple, Protocol

from jaxserve.server.parsers.call_reader import (
    FoundCall,
    arguments_text,
    load_json,
    read_call,
)
from jaxserve.server.parsers.json_scanner import JsonScanner
from jaxserve.server.parsers.text_parser import ParsedDelta, content_delta, split_at_marker
from jaxserve.server.parsers.tool_parser import ToolParser
from jaxserve.server.wire.call_grammar import CallLayout


class _Reading(NamedTuple):
    """What a reader has found after a marker.

    Args:
        calls: empty if the text isn't a call.
        end: where the text after them begins.
        goes_on: whether more calls may follow without another marker.
    """

    calls: list[FoundCall]
    end: int
    goes_on: bool = False


_NO_CALL = _Reading([], 0)


class _Reader(Protocol):
    """Reads what follows one marker, or the last calls if these go on."""

    def read(self, text: str, last: bool) -> _Reading | None:
        """What was found; None while that isn't known.

        Args:
            text: all text after the marker or the last calls so far.
            last: there is no more text.
        """


class _MarkedCallParser(ToolParser):
    """Content, with calls that begin with a marker. White space around calls is dropped."""

    def __init__(self, offered: Collection[str]) -> None:
        super().__init__(offered)
        self._text = ""  # whose kind isn't known yet; after the marker if there is a reader
        self._before = ""  # white space and the marker, until a call follows
        self._reader: _Reader | None = None
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
        before, marker, after = split_at_marker(self._text, self.markers[:1])
        kept = before.rstrip()
        deltas += content_delta(kept)
        spaces = before[len(kept) :]
        if marker is None:
            self._text = spaces + after
            return False
        self._before, self._text, self._reader = spaces + marker, after, self._new_reader()
        return True

    def _new_reader(self) -> _Reader:
        raise NotImplementedError


class _HermesReader:
    def __init__(self, offered: Collection[str]) -> None:
        self._offered = offered
        self._scanner, self._at = JsonScanner(), 0
        self._call: FoundCall | None = None

    def read(self, text: str, last: bool) -> _Reading | None:
        if self._call is None:
            end = self._scanner.feed(text[self._at :])
            if end is None:
                self._at = len(text)
                return _NO_CALL if last or self._scanner.malformed else None
            self._at += end
            self._call = read_call(text[: self._at], self._offered)
            if self._call is None:
                return _NO_CALL
        rest, close = text[self._at :].lstrip(), HermesParser.markers[1]
        if rest.startswith(close):
            return _Reading([self._call], len(text) - len(rest) + len(close))
        waits = close.startswith(rest) and not last
        return None if waits else _Reading([self._call], self._at)


class HermesParser(_MarkedCallParser):
    """<tool_call> {"name": ..., "arguments": {...}} </tool_call>, the format of Hermes and Qwen."""

    markers = ("<tool_call>", "</tool_call>")
    layout = CallLayout("<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>")

    def _new_reader(self) -> _Reader:
        return _HermesReader(self._offered)


class _ArrayReader:
    """Reads a JSON array of calls, one by one, up to the first item that is none."""

    def __init__(self, offered: Collection[str]) -> None:
        self._offered = offered
        self._scanner: JsonScanner | None = None  # of an object
        self._begin = self._at = 0  # of the object; how much of the text was scanned
        self._calls = 0

    def read(self, text: str, last: bool) -> _Reading | None:
        if self._scanner is None:
            bare = text.lstrip()
            if self._calls and bare.startswith("]"):
                return _Reading([], len(text) - len(bare) + 1)
            mark, inner = "," if self._calls else "[", bare[1:].lstrip()
            if mark.startswith(bare[:1]) and not inner:
                return _NO_CALL if last else None
            if bare[0] != mark or inner[0] != "{":
                return _NO_CALL
            self._begin = self._at = len(text) - len(inner)
            self._scanner = JsonScanner()
        end = self._scanner.feed(text[self._at :])
        if end is None:
            self._at = len(text)
            return _NO_CALL if last or self._scanner.malformed else None
        call = read_call(text[self._begin : self._at + end], self._offered)
        if call is None:
            return _NO_CALL
        self._calls, self._scanner = self._calls + 1, None
        return _Reading([call], self._at + end, goes_on=True)


class _MistralReader:
    """Reads an array, or a name and its arguments."""

    _NAMED = re.compile(
        r"\s*(?P<name>[\w-]{1,128})\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)"
    )
    _LONGEST = 256  # characters before the arguments

    def __init__(self, offered: Collection[str]) -> None:
        self._offered = offered
        self._array: _ArrayReader | None = None
        self._scanner, self._begin, self._at = JsonScanner(), 0, 0
        self._name = ""

    def read(self, text: str, last: bool) -> _Reading | None:
        if not self._name and self._array is None:
            if text.lstrip().startswith("["):
                self._array = _ArrayReader(self._offered)
            elif (named := self._NAMED.match(text)) and named["name"] in self._offered:
                self._name, self._begin, self._at = named["name"], named.end(), named.end()
            else:
                given_up = last or "{" in text or len(text) > self._LONGEST
                return _NO_CALL if given_up else None
        if self._array is not None:
            return self._array.read(text, last)
        end = self._scanner.feed(text[self._at :])
        if end is None:
            self._at = len(text)
            return _NO_CALL if last or self._scanner.malformed else None
        self._at += end
        arguments = arguments_text(load_json(text[self._begin : self._at]))
        if arguments is None:
            return _NO_CALL
        return _Reading([FoundCall(self._name, arguments)], self._at)


class MistralParser(_MarkedCallParser):
    """[TOOL_CALLS] and a JSON array of calls, or, from tokenizer version 11 on, a name and its
    arguments: [TOOL_CALLS]name[ARGS]{...}."""

    markers = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    layout = CallLayout("[TOOL_CALLS][", ", ", "]")

    @staticmethod
    def new_call_id() -> str:
        # Mistral's chat templates refuse ids of any other form.
        letters = string.ascii_letters + string.digits
        return "".join(secrets.choice(letters) for _ in range(9))

    def _new_reader(self) -> _Reader:
        return _MistralReader(self._offered)
