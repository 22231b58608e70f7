"""Kimi K2's format: a section of calls, each with functions.NAME:INDEX and its arguments."""

from __future__ import annotations

import re

from jaxserve.server.parsers.block_calls import BlockParser
from jaxserve.server.parsers.call_reader import FoundCall
from jaxserve.server.parsers.formats.qwen3_coder import whole_matches
from jaxserve.server.parsers.typed_values import named_json_call
from jaxserve.server.wire.call_grammar import CallLayout

_BEGIN, _ARGUMENTS, _END = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
_CALL = re.compile(
    rf"\s*{re.escape(_BEGIN)}\s*(?:functions\.)?([\w.-]+?):\d+\s*{re.escape(_ARGUMENTS)}(.*?)"
    rf"{re.escape(_END)}\s*",
    re.DOTALL,
)


class KimiK2Parser(BlockParser):
    markers = (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        *(_BEGIN, _ARGUMENTS, _END),
    )
    end_optional = True
    layout = CallLayout(
        *(markers[0], "", markers[1]),
        before=f"{_BEGIN}functions.{{name}}:{{n}}{_ARGUMENTS}",
        after=_END,
    )

    def read_block(self, block: str) -> list[FoundCall]:
        written = whole_matches(_CALL, block)
        calls = [named_json_call(name, arguments, self._offered) for name, arguments in written]
        found = [call for call in calls if call is not None]
        return found if len(found) == len(written) else []
