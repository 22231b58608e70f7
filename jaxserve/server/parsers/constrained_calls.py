"""Calls in outputs that a grammar constrains."""

from __future__ import annotations

from collections.abc import Callable

from jaxserve.server.parsers.text_parser import ParsedDelta, TextParser, content_delta


class NamedCallParser:
    """The arguments of a call to the tool that the request names, and nothing else.

    They are passed on as they come: their grammar makes them JSON, unless the output is cut off.
    """

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def feed(self, text: str) -> list[ParsedDelta]:
        if not text:
            return []
        first = [] if self._name is None else [ParsedDelta("call", self._name)]
        self._name = None
        return [*first, ParsedDelta("arguments", text)]

    def finish(self) -> list[ParsedDelta]:
        return []


class CallOrAnswerParser:
    """Calls if the output begins with a marker; else an answer, in which nothing is a call.

    Args:
        marker: begins calls.
        calls: makes the parser of calls.
    """

    def __init__(self, marker: str, calls: Callable[[], TextParser]) -> None:
        self._marker, self._calls = marker, calls
        self._held = ""
        self._parser: TextParser | None = None
        self._plain = False

    def feed(self, text: str) -> list[ParsedDelta]:
        if self._plain:
            return content_delta(text)
        if self._parser is not None:
            return self._parser.feed(text)
        self._held += text
        bare = self._held.lstrip()
        if bare.startswith(self._marker):
            self._parser = self._calls()
            return self._parser.feed(self._held)
        if self._marker.startswith(bare):
            return []
        self._plain = True
        return content_delta(self._held)

    def finish(self) -> list[ParsedDelta]:
        if self._parser is not None:
            return self._parser.finish()
        return [] if self._plain else content_delta(self._held)
