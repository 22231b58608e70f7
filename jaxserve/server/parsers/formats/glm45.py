"""<tool_call>NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value> </tool_call>, of GLM 4.5."""

from __future__ import annotations

import re

from jaxserve.server.parsers.block_calls import BlockParser
from jaxserve.server.parsers.call_reader import FoundCall
from jaxserve.server.parsers.formats.qwen3_coder import whole_matches
from jaxserve.server.parsers.typed_values import typed_call

_NAME = re.compile(r"\s*([\w-]+)\s*")
_ARGUMENT = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


class Glm45Parser(BlockParser):
    """Values that the schema doesn't declare as text are JSON."""

    markers = ("<tool_call>", "</tool_call>")

    def read_block(self, block: str) -> list[FoundCall]:
        name = _NAME.match(block)
        if name is None:
            return []
        rest = block[name.end() :]
        arguments = whole_matches(_ARGUMENT, rest)
        if rest and not arguments:
            return []
        call = typed_call(name[1], arguments, self._offered)
        return [] if call is None else [call]
