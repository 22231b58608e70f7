"""From a model's text to its parts: reasoning, content, and calls of tools, as they come.

A parser takes text piece by piece; what it finds doesn't depend on where the text was cut.
"""

from __future__ import annotations

from jaxserve.server.parsers.pieces import Piece, TextParser
from jaxserve.server.parsers.reasoning import REASONING_PARSERS, Think
from jaxserve.server.parsers.tool_calls import (
    TOOL_PARSERS,
    NamedCall,
    RequiredCalls,
    ToolParser,
)

__all__ = [
    "REASONING_PARSERS",
    "TOOL_PARSERS",
    "NamedCall",
    "Piece",
    "RequiredCalls",
    "TextParser",
    "Think",
    "ToolParser",
]
