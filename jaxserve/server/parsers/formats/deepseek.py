"""The formats of DeepSeek V3 and R1, of V3.1, and of V3.2."""

from __future__ import annotations

import re
from typing import ClassVar

from jaxserve.server.parsers.block_calls import BlockParser
from jaxserve.server.parsers.call_reader import FoundCall, arguments_text, load_json
from jaxserve.server.parsers.formats.qwen3_coder import whole_matches
from jaxserve.server.parsers.typed_values import named_json_call
from jaxserve.server.wire.call_grammar import CallLayout

_BEGIN, _END = "<\uff5ctool\u2581call\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>"
_CALLS, _CALLS_END = (
    "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "<\uff5ctool\u2581calls\u2581end\uff5c>",
)
_SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
_DSML = "\uff5cDSML\uff5c"


class _DeepSeekParser(BlockParser):
    markers = (_CALLS, _CALLS_END, _BEGIN, _END, _SEPARATOR)
    # Some outputs end without the last marker.
    end_optional = True
    _call: ClassVar[re.Pattern[str]]

    def read_block(self, block: str) -> list[FoundCall]:
        written = whole_matches(self._call, block)
        calls = [named_json_call(name.strip(), body, self._offered) for name, body in written]
        found = [call for call in calls if call is not None]
        return found if len(found) == len(written) else []


class DeepSeekV3Parser(_DeepSeekParser):
    """function, a separator, the name, and the arguments as a block of JSON."""

    layout = CallLayout(
        *(_CALLS, "", _CALLS_END),
        before=f"{_BEGIN}function{_SEPARATOR}{{name}}\n```json\n",
        after=f"\n```{_END}",
    )
    _call = re.compile(
        rf"\s*{re.escape(_BEGIN)}function{re.escape(_SEPARATOR)}([^\n]*)\n"
        rf"```json\n(.*?)\n```{re.escape(_END)}\s*",
        re.DOTALL,
    )


class DeepSeekV31Parser(_DeepSeekParser):
    """The name, a separator, and the arguments."""

    layout = CallLayout(
        *(_CALLS, "", _CALLS_END), before=f"{_BEGIN}{{name}}{_SEPARATOR}", after=_END
    )
    _call = re.compile(
        rf"\s*{re.escape(_BEGIN)}(.*?){re.escape(_SEPARATOR)}(.*?){re.escape(_END)}\s*", re.DOTALL
    )


class DeepSeekV32Parser(BlockParser):
    """XML, in which each value says whether it is text."""

    markers = (f"<{_DSML}function_calls>", f"</{_DSML}function_calls>", _DSML)
    _invoke = re.compile(rf'\s*<{_DSML}invoke name="([^"\n]+)">(.*?)</{_DSML}invoke>\s*', re.DOTALL)
    _parameter = re.compile(
        rf'\s*<{_DSML}parameter name="([^"\n]+)" string="(true|false)">(.*?)</{_DSML}parameter>\s*',
        re.DOTALL,
    )

    def read_block(self, block: str) -> list[FoundCall]:
        invokes = whole_matches(self._invoke, block)
        calls = [self._read(name, body) for name, body in invokes]
        found = [call for call in calls if call is not None]
        return found if len(found) == len(invokes) else []

    def _read(self, name: str, body: str) -> FoundCall | None:
        arguments, at = {}, 0
        while at < len(body) and (match := self._parameter.match(body, at)):
            value = match[3] if match[2] == "true" else load_json(match[3])
            if match[1] in arguments or (value is False and match[3].strip() != "false"):
                return None
            arguments[match[1]], at = value, match.end()
        written = arguments_text(arguments)
        if name not in self._offered or written is None or body[at:].strip():
            return None
        return FoundCall(name, written)
