"""The formats of tool calls by name."""

from __future__ import annotations

from jaxserve.server.parsers.marked_calls import HermesParser, MistralParser
from jaxserve.server.parsers.object_calls import Llama3JsonParser
from jaxserve.server.parsers.tool_parser import ToolParser

TOOL_PARSERS: dict[str, type[ToolParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
    "mistral": MistralParser,
}
