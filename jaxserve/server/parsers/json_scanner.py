"""Finds the end of a JSON value in text that comes bit by bit."""

from __future__ import annotations

import re
from enum import Enum, auto

_SPACE = " \t\r\n"
_IN_STRING = re.compile(r'[^"\\]*')
_WORD = re.compile(r"[-+.0-9A-Za-z]+")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")


class _Next(Enum):
    """What may come next, besides white space."""

    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()


_VALUES = (_Next.VALUE, _Next.VALUE_OR_END)
_KEYS = (_Next.KEY, _Next.KEY_OR_END)


class JsonScanner:
    """Follows the text of an object or an array, with white space before it, to its end.

    Control characters in strings are let pass, because models write them.

    Attributes:
        malformed: whether the text can't become an object or an array any more.
    """

    def __init__(self) -> None:
        self.malformed = False
        self._open: list[str] = []
        self._next = _Next.VALUE
        self._in_string = self._escaped = False
        self._word = ""  # of a number, true, false or null

    def feed(self, text: str) -> int | None:
        """The place in this text where the value ends; None if it doesn't end here."""
        at = 0
        while at < len(text) and not self.malformed:
            if self._in_string:
                at = self._continue_string(text, at)
            elif word := _WORD.match(text, at):
                self.malformed = not self._open or self._next not in _VALUES
                self._word += word[0]
                at = word.end()
            else:
                self._end_word()
                self._take(text[at])
                at += 1
                if not self._open and self._next is _Next.COMMA_OR_END:
                    return None if self.malformed else at
        return None

    def _continue_string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _IN_STRING.match(text, at)
        assert found is not None
        end = found.end()
        if end < len(text):
            self._escaped = text[end] == "\\"
            self._in_string = self._escaped
        return end + 1

    def _end_word(self) -> None:
        if self._word:
            self.malformed |= not _SCALAR.fullmatch(self._word)
            self._word, self._next = "", _Next.COMMA_OR_END

    def _take(self, char: str) -> None:
        """Follows one character outside of strings and words."""
        inside = self._open[-1] if self._open else ""
        match char:
            case _ if char in _SPACE:
                pass
            case '"' if inside and self._next in _VALUES:
                self._in_string, self._next = True, _Next.COMMA_OR_END
            case '"' if self._next in _KEYS:
                self._in_string, self._next = True, _Next.COLON
            case "{" if self._next in _VALUES:
                self._open.append(char)
                self._next = _Next.KEY_OR_END
            case "[" if self._next in _VALUES:
                self._open.append(char)
                self._next = _Next.VALUE_OR_END
            case "}" if inside == "{" and self._next in (_Next.KEY_OR_END, _Next.COMMA_OR_END):
                self._close()
            case "]" if inside == "[" and self._next in (_Next.VALUE_OR_END, _Next.COMMA_OR_END):
                self._close()
            case "," if self._next is _Next.COMMA_OR_END:
                self._next = _Next.KEY if inside == "{" else _Next.VALUE
            case ":" if self._next is _Next.COLON:
                self._next = _Next.VALUE
            case _:
                self.malformed = True

    def _close(self) -> None:
        self._open.pop()
        self._next = _Next.COMMA_OR_END
