"""StopStrings: cuts a text at the first stop string."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Returns text up to the first stop string, or including it: the one that is complete first,
    and of those that end together the longest. Holds back a part at the end only while a stop
    string may begin there.

    A stop string may contain text that isn't shown, as the name of a special token: that text is
    searched, but not returned.

    Args:
        stop: the stop strings, not empty.
        included: the text includes the stop string.
    """

    def __init__(self, stop: Sequence[str], included: bool) -> None:
        self._stop, self._included = stop, included
        self._longest = max(map(len, stop))
        self._held = ""
        self._hidden: list[tuple[int, int]] = []  # ranges of _held that aren't shown
        self.matched: str | None = None

    def add(self, text: str, *, is_shown: bool = True, may_match: bool = True) -> str:
        """Takes the next part of the text; returns what can't belong to a stop string.

        Args:
            may_match: False passes over stop strings that end in this part.
        """
        start = len(self._held)
        whole = self._held + text
        if not is_shown:
            self._hidden.append((start, len(whole)))
        if may_match and (end := self._find(whole, start)):
            assert self.matched is not None
            shown = self._shown(whole, end - len(self.matched))
            self._held = ""
            return shown + self.matched if self._included else shown
        return self._release(whole, len(whole) - self._partial(whole))

    def flush(self) -> str:
        """The text that was held back."""
        return self._release(self._held, len(self._held))

    def _find(self, text: str, after: int) -> int:
        """Where the first stop string that ends after `after` ends; 0 if there is none."""
        found = []
        for stop in self._stop:
            at = text.find(stop, max(after - len(stop) + 1, 0))
            if at >= 0:
                found.append((at + len(stop), at, stop))
        if not found:
            return 0
        end, _, self.matched = min(found)
        return end

    def _partial(self, text: str) -> int:
        """Length of the longest end of text that a stop string begins with."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(s.startswith(text[-length:]) for s in self._stop):
                return length
        return 0

    def _release(self, text: str, end: int) -> str:
        """The shown part of text[:end]; the rest is held back."""
        shown = self._shown(text, end)
        self._held = text[end:]
        self._hidden = [(max(a - end, 0), b - end) for a, b in self._hidden if b > end]
        return shown

    def _shown(self, text: str, end: int) -> str:
        if not self._hidden:
            return text[:end]
        parts, at = [], 0
        for first, last in self._hidden:
            parts.append(text[at : min(first, end)])
            at = max(at, min(last, end))
        return "".join([*parts, text[at:end]])
