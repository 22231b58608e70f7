"""Incremental parsing of tool calls that are JSON objects."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from jaxserve.server.parsers.text_parser import ParsedDelta, content_delta

_HEADER = re.compile(
    r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*'
    r"(?=\{)"
)
_STRUCTURAL = re.compile(r'["\\\[\]{}]')


class ValueEnd:
    """Finds the end of a JSON object or array. The text begins with its bracket, or white space
    before it.

    in_string: whether the text so far ends inside a string.
    """

    def __init__(self) -> None:
        self._depth = 0
        self.in_string = self._escaped = False

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
                    self._escaped = self.in_string
                case '"':
                    self.in_string = not self.in_string
                case _ if self.in_string:
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
    isn't a call of an offered tool is content.

    is_call: whether the object is known to be a call.

    Args:
        names: of the tools that the request offers.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names, self._raw = names, ""
        self._object, self._arguments = ValueEnd(), ValueEnd()
        self.is_call = self._complete = False

    def feed(self, text: str) -> tuple[list[ParsedDelta], str | None]:
        """What this text adds, and the text after the object; None if the object isn't complete."""
        end = self._object.feed(text)
        own, rest = (text, None) if end is None else (text[:end], text[end:])
        deltas: list[ParsedDelta] = []
        if not self.is_call:
            self._raw += own
            header = _HEADER.match(self._raw)
            if header and (name := _unquote(header["name"])) in self._names:
                self.is_call = True
                own = self._raw[header.end() :]
                deltas.append(ParsedDelta("call", name))
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
            name = call["name"]
            arguments = _object_text(call.get("arguments", call.get("parameters")))
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            return content_delta(self._raw)
        if not isinstance(name, str) or name not in self._names or arguments is None:
            return content_delta(self._raw)
        self.is_call = True
        return [ParsedDelta("call", name), ParsedDelta("arguments", arguments)]


def _object_text(arguments: Any) -> str | None:
    """Arguments as the text of a JSON object; None if they are something else. Some models write
    them as a string that holds JSON, or null if there are none."""
    if isinstance(arguments, str) and arguments.strip():
        value = json.loads(arguments)
        return arguments if isinstance(value, dict) else _object_text(value)
    if not arguments and not isinstance(arguments, list | bool | int | float):
        return "{}"
    return json.dumps(arguments) if isinstance(arguments, dict) else None


class CallSequence:
    """Parses consecutive calls, up to the first text that is neither a call nor a separator.

    Args:
        names: as of CallScanner.
        separators: characters that may stand between calls, besides white space.
        closer: a character that ends the sequence and belongs to it.
    """

    def __init__(self, names: Collection[str], separators: str, closer: str = "") -> None:
        self._names, self._closer = names, closer
        self._skipped = separators + " \t\r\n"
        self._scanner: CallScanner | None = None
        self._before = ""  # separators before the object that is being parsed
        self._calls = 0

    def feed(self, text: str) -> tuple[list[ParsedDelta], str | None]:
        """What this text adds, and the text after the sequence; None if it may go on."""
        deltas: list[ParsedDelta] = []
        while True:
            if self._scanner is None:
                bare = text.lstrip(self._skipped)
                self._before += text[: len(text) - len(bare)]
                if not bare:
                    return deltas, None
                if bare[0] != "{":
                    return deltas, self._after(bare)
                self._scanner, text = CallScanner(self._names), bare
            more, rest = self._scanner.feed(text)
            if self._scanner.is_call:
                self._calls += any(delta.kind == "call" for delta in more)
                self._before = ""
            elif rest is not None:  # an object that isn't a call is content, with what is before it
                return deltas, self._before + "".join(delta.text for delta in more) + rest
            deltas += more
            if rest is None:
                return deltas, None
            self._scanner, text = None, rest

    def _after(self, text: str) -> str:
        """The text after the sequence: its own separators don't belong to it."""
        if not self._calls:
            return self._before + text
        return text.removeprefix(self._closer)

    def finish(self) -> list[ParsedDelta]:
        if self._scanner is not None:
            held = self._scanner.finish()
            return content_delta(self._before + held[0].text) if held else []
        return [] if self._calls else content_delta(self._before)


def _unquote(name: str) -> str:
    try:
        return str(json.loads(name))
    except ValueError:
        return name[1:-1]
