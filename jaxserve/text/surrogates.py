"""Halves of surrogate pairs, which JSON's escapes can write and UTF-8 can't, become U+FFFD."""

from __future__ import annotations

import re

MAX_SEARCHED = 2**20  # some 50 ms of work for nothing but escapes
# JSON's escapes, one after another: a pair, half a pair, any other.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def without_half_surrogates(text: str) -> str:
    """The text with U+FFFD for each half of a pair."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def find_half_surrogate(data: bytes) -> int | None:
    """Where the first half of a pair is in the first MAX_SEARCHED bytes of a JSON text; None if
    there is none."""
    halves = (found.start() for found in _ESCAPE.finditer(data[:MAX_SEARCHED]) if found["half"])
    return next(halves, None)
