"""The interface of the parsers of tool calls."""

from __future__ import annotations

import secrets
from typing import ClassVar

from jaxserve.server.parsers.call_reader import Offered
from jaxserve.server.parsers.text_parser import TextParser
from jaxserve.server.wire.call_grammar import CallLayout


class ToolParser(TextParser):
    """Parses one format of tool calls.

    A call is passed on when it is complete: the name of an offered tool, and arguments that are a
    JSON object. All other text is content.

    markers: strings that the model writes around calls, the one that begins a call first. If they
        are special tokens, the text must be decoded with special tokens.
    layout: how a grammar makes the model write calls; begins with the first marker. None if no
        grammar can.
    needs_marker: whether a call can't begin without the first marker.

    Args:
        offered: the tools that may be called.
    """

    markers: ClassVar[tuple[str, ...]] = ()
    layout: ClassVar[CallLayout | None] = None
    needs_marker: ClassVar[bool] = True

    def __init__(self, offered: Offered) -> None:
        self._offered = offered

    @staticmethod
    def new_call_id() -> str:
        return f"call_{secrets.token_hex(12)}"
