"""What parsers give, and what they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol


class Piece(NamedTuple):
    """A part of an answer.

    Args:
        kind: "call" begins a call of a tool; "arguments" add to those of the call begun last.
        text: to append; the tool's name of a "call".
    """

    kind: Literal["content", "reasoning", "call", "arguments"]
    text: str


class TextParser(Protocol):
    """Reads one choice."""

    def feed(self, text: str) -> list[Piece]:
        """What this text, after all before it, tells."""

    def finish(self) -> list[Piece]:
        """What was held back, once there is no more text."""


def content(text: str) -> list[Piece]:
    return [Piece("content", text)] if text else []


def cut(text: str, markers: Sequence[str]) -> tuple[str, str | None, str]:
    """Splits text at the first of the markers: before, marker, after.

    Without one, the marker is None and the last part is an end of the text that a marker may
    begin with.
    """
    found = [(at, marker) for marker in markers if (at := text.find(marker)) >= 0]
    if found:
        at, marker = min(found)
        return text[:at], marker, text[at + len(marker) :]
    longest = max(map(len, markers)) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(marker.startswith(text[-length:]) for marker in markers):
            return text[:-length], None, text[-length:]
    return text, None, ""
