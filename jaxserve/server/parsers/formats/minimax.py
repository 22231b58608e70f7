"""MiniMax's formats: lines of JSON in M1, XML in M2."""

from __future__ import annotations

import re

from jaxserve.server.parsers.block_calls import BlockParser
from jaxserve.server.parsers.call_reader import FoundCall, read_call
from jaxserve.server.parsers.formats.qwen3_coder import whole_matches
from jaxserve.server.parsers.typed_values import typed_call

_INVOKE = re.compile(r'\s*<invoke name="?([^">\n]+)"?>(.*?)</invoke>\s*', re.DOTALL)
_PARAMETER = re.compile(r'\s*<parameter name="?([^">\n]+)"?>(.*?)</parameter>\s*', re.DOTALL)


class MinimaxParser(BlockParser):
    """<tool_calls> and a JSON object a line."""

    markers = ("<tool_calls>", "</tool_calls>")

    def read_block(self, block: str) -> list[FoundCall]:
        lines = [line for line in block.split("\n") if line.strip()]
        calls = [call for line in lines if (call := read_call(line, self._offered)) is not None]
        return calls if len(calls) == len(lines) else []


class MinimaxM2Parser(BlockParser):
    """Values that the schema doesn't declare as text are JSON."""

    markers = ("<minimax:tool_call>", "</minimax:tool_call>")

    def read_block(self, block: str) -> list[FoundCall]:
        invokes = whole_matches(_INVOKE, block)
        calls = [
            typed_call(name, parameters, self._offered)
            for name, body in invokes
            if (parameters := whole_matches(_PARAMETER, body)) or not body.strip()
        ]
        found = [call for call in calls if call is not None]
        return found if len(found) == len(invokes) else []
