"""Halves of surrogate pairs, which JSON's escapes can write and UTF-8 can't, become U+FFFD."""

from __future__ import annotations


def without_half_surrogates(text: str) -> str:
    """The text with U+FFFD for each half of a pair."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
