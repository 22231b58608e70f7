"""Formats whose calls are in blocks: a marker at the beginning, another at the end."""

from __future__ import annotations

from typing import ClassVar

from jaxserve.server.parsers.call_reader import FoundCall
from jaxserve.server.parsers.marked_calls import NO_CALL, MarkedCallParser, Reader, Reading


class BlockParser(MarkedCallParser):
    """Content, with blocks of calls from the first marker to the second one. A block that has
    anything but calls of offered tools is content.

    end_optional: whether the end of the output also ends a block.
    """

    end_optional: ClassVar[bool] = False

    def read_block(self, block: str) -> list[FoundCall]:
        """The calls of a block, without its markers; none if it isn't all calls."""
        raise NotImplementedError

    def _new_reader(self) -> Reader:
        return _BlockReader(self)


class _BlockReader:
    def __init__(self, parser: BlockParser) -> None:
        self._parser, self._searched = parser, 0

    def read(self, text: str, last: bool) -> Reading | None:
        end = self._parser.markers[1]
        at = text.find(end, self._searched)
        self._searched = max(0, len(text) - len(end) + 1)
        if at < 0:
            if not last:
                return None
            calls = self._parser.read_block(text) if self._parser.end_optional else []
            return Reading(calls, len(text)) if calls else NO_CALL
        calls = self._parser.read_block(text[:at])
        return Reading(calls, at + len(end)) if calls else NO_CALL
