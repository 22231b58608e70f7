"""Parsers of generated text: reasoning, content and tool calls, incrementally.

The result doesn't depend on where the text was split.
"""

from __future__ import annotations

from jaxserve.server.parsers.constrained_calls import CallOrAnswerParser, NamedCallParser
from jaxserve.server.parsers.object_calls import RequiredCallsParser
from jaxserve.server.parsers.reasoning import REASONING_PARSERS, ThinkTagParser
from jaxserve.server.parsers.text_parser import ParsedDelta, TextParser
from jaxserve.server.parsers.tool_calls import TOOL_PARSERS
from jaxserve.server.parsers.tool_parser import ToolParser

__all__ = [
    "REASONING_PARSERS",
    "TOOL_PARSERS",
    "CallOrAnswerParser",
    "NamedCallParser",
    "ParsedDelta",
    "RequiredCallsParser",
    "TextParser",
    "ThinkTagParser",
    "ToolParser",
]
