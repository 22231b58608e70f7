"""The interface of the parsers, and what they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol


class ParsedDelta(NamedTuple):
    """What a parser found in a further bit of text.

    Args:
        kind: "call" begins a tool call; "arguments" belong to the call that began last.
        text: to append to what came before; for a "call", the tool's name.
    """

    kind: Literal["content", "reasoning", "call", "arguments"]
    text: str


class TextParser(Protocol):
    """Parses the text of one choice, incrementally."""

    def feed(self, text: str) -> list[ParsedDelta]:
        """What this text, after all text before it, adds."""

    def finish(self) -> list[ParsedDelta]:
        """What was held back, once there is no more text."""


def content_delta(text: str) -> list[ParsedDelta]:
    """The text as content; nothing for an empty text."""
    return [ParsedDelta("content", text)] if text else []


def split_at_marker(text: str, markers: Sequence[str]) -> tuple[str, str | None, str]:
    """Splits text at the first of the markers: before, marker, after.

    If there is none, the marker is None, and the last part is the longest end of the text that is
    the beginning of a marker.
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
