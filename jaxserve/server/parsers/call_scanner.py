"""Calls of tools written as JSON, read while they are being written."""

from __future__ import annotations

import json
import re

from jaxserve.server.parsers.pieces import Piece, content

_HEADER = re.compile(
    r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*'
    r"(?=\{)"
)
_MATTERS = re.compile(r'["\\\[\]{}]')


class ValueEnd:
    """Finds the end of a JSON object or array; the text begins at its bracket, after spaces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def feed(self, text: str) -> int | None:
        """Where in this text the value ends; None if it goes on."""
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = _MATTERS.search(text, at)
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
    """Reads {"name": ..., "arguments": {...}}; "parameters" is another word for the arguments.

    Once the name is known and the arguments have begun, they are passed on as they are written.
    In any other order the call comes as a whole at its end, and what isn't a call is content.

    is_call: whether it is one, as far as is known.
    """

    def __init__(self) -> None:
        self._raw = ""
        self._object, self._arguments = ValueEnd(), ValueEnd()
        self.is_call = self._complete = False

    def feed(self, text: str) -> tuple[list[Piece], str | None]:
        """What the text tells, and what follows the object; None while it goes on."""
        end = self._object.feed(text)
        own, rest = (text, None) if end is None else (text[:end], text[end:])
        pieces: list[Piece] = []
        if not self.is_call:
            self._raw += own
            if header := _HEADER.match(self._raw):
                self.is_call = True
                own = self._raw[header.end() :]
                pieces.append(Piece("call", _unquote(header["name"])))
            elif end is not None:
                return self._whole(), rest
            else:
                return [], None
        if not self._complete:
            stop = self._arguments.feed(own)
            self._complete = stop is not None
            pieces.append(Piece("arguments", own[:stop]))
        return [piece for piece in pieces if piece.text], rest

    def finish(self) -> list[Piece]:
        """What is left of an object that was never closed."""
        return [] if self.is_call else content(self._raw)

    def _whole(self) -> list[Piece]:
        try:
            call = json.loads(self._raw)
            arguments = call.get("arguments", call.get("parameters", {}))
            name = call["name"]
        except (ValueError, KeyError, AttributeError, RecursionError):
            return content(self._raw)
        if not isinstance(name, str) or not name:
            return content(self._raw)
        self.is_call = True
        # Some models write the arguments as a string that holds JSON.
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return [Piece("call", name), Piece("arguments", text)]


class CallSequence:
    """Objects one after another; ends at anything else, and after an object that isn't a call.

    Args:
        separators: characters between them that mean nothing; white space never does.
        closer: a character that belongs to the sequence and ends it.
    """

    def __init__(self, separators: str, closer: str = "") -> None:
        self._skipped = separators + " \t\r\n"
        self._closer = closer
        self._scanner: CallScanner | None = None

    def feed(self, text: str) -> tuple[list[Piece], str | None]:
        """What the text tells, and what follows the sequence; None while it goes on."""
        pieces: list[Piece] = []
        while True:
            if self._scanner is None:
                text = text.lstrip(self._skipped)
                if not text:
                    return pieces, None
                if text[0] != "{":
                    return pieces, text.removeprefix(self._closer)
                self._scanner = CallScanner()
            more, rest = self._scanner.feed(text)
            pieces += more
            if rest is None or not self._scanner.is_call:
                return pieces, rest
            self._scanner, text = None, rest

    def finish(self) -> list[Piece]:
        return self._scanner.finish() if self._scanner else []


def _unquote(name: str) -> str:
    try:
        return str(json.loads(name))
    except ValueError:
        return name[1:-1]
