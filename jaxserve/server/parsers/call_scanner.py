"""Incremental parsing of tool calls that are JSON objects."""

from __future__ import annotations

import json
import re

from jaxserve.server.parsers.text_parser import ParsedDelta, content_delta

_HEADER = re.compile(
    r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*'
    r"(?=\{)"
)
_STRUCTURAL = re.compile(r'["\\\[\]{}]')


class ValueEnd:
    """Finds the end of a JSON object or array. The text begins with its bracket, or white space
    before it."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def feed(self, text: str) -> int | None:
        """The place in this text where the value ends; None if it doesn't end yet."""
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = _STRUCTURAL.search(text, at)
            if not found:
                return None
            at = found.end()
            match found[0]:
                case "\\":
                    self._escaped = self._in_string
                case '"':
                    self._in_string = not self._in_string
                case _ if self._in_string:
                    pass
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if self._depth <= 0:
                        return at
        return None


class CallScanner:
    """Parses {"name": ..., "arguments": {...}}; "parameters" may replace "arguments".

    Once the name is complete and the arguments have begun, the arguments are passed on as they
    come. With keys in another order the call is passed on when it is complete. An object that
    isn't a call is content.

    is_call: whether the object is known to be a call.
    """

    def __init__(self) -> None:
        self._raw = ""
        self._object, self._arguments = ValueEnd(), ValueEnd()
        self.is_call = self._complete = False

    def feed(self, text: str) -> tuple[list[ParsedDelta], str | None]:
        """What this text adds, and the text after the object; None if the object isn't complete."""
        end = self._object.feed(text)
        own, rest = (text, None) if end is None else (text[:end], text[end:])
        deltas: list[ParsedDelta] = []
        if not self.is_call:
            self._raw += own
            if header := _HEADER.match(self._raw):
                self.is_call = True
                own = self._raw[header.end() :]
                deltas.append(ParsedDelta("call", _unquote(header["name"])))
            elif end is not None:
                return self._complete_object(), rest
            else:
                return [], None
        if not self._complete:
            stop = self._arguments.feed(own)
            self._complete = stop is not None
            deltas.append(ParsedDelta("arguments", own[:stop]))
        return [delta for delta in deltas if delta.text], rest

    def finish(self) -> list[ParsedDelta]:
        """What was held back of an object that isn't complete at the end of the output."""
        return [] if self.is_call else content_delta(self._raw)

    def _complete_object(self) -> list[ParsedDelta]:
        try:
            call = json.loads(self._raw)
            arguments = call.get("arguments", call.get("parameters", {}))
            name = call["name"]
        except (ValueError, KeyError, AttributeError, RecursionError):
            return content_delta(self._raw)
        if not isinstance(name, str) or not name:
            return content_delta(self._raw)
        self.is_call = True
        # Some models write the arguments as a string that holds JSON.
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return [ParsedDelta("call", name), ParsedDelta("arguments", text)]


class CallSequence:
    """Parses consecutive objects, up to the first text that is neither a call nor a separator.

    Args:
        separators: characters that may stand between objects, besides white space.
        closer: a character that ends the sequence and belongs to it.
    """

    def __init__(self, separators: str, closer: str = "") -> None:
        self._skipped = separators + " \t\r\n"
        self._closer = closer
        self._scanner: CallScanner | None = None

    def feed(self, text: str) -> tuple[list[ParsedDelta], str | None]:
        """What this text adds, and the text after the sequence; None if it may go on."""
        deltas: list[ParsedDelta] = []
        while True:
            if self._scanner is None:
                text = text.lstrip(self._skipped)
                if not text:
                    return deltas, None
                if text[0] != "{":
                    return deltas, text.removeprefix(self._closer)
                self._scanner = CallScanner()
            more, rest = self._scanner.feed(text)
            deltas += more
            if rest is None or not self._scanner.is_call:
                return deltas, rest
            self._scanner, text = None, rest

    def finish(self) -> list[ParsedDelta]:
        return self._scanner.finish() if self._scanner else []


def _unquote(name: str) -> str:
    try:
        return str(json.loads(name))
    except ValueError:
        return name[1:-1]
