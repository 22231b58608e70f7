"""Calls as XML: <function=NAME><parameter=KEY>VALUE</parameter></function>.

It is the format of Qwen3 Coder, Qwen 3.5 and, in tags with a prefix, Seed.
"""

from __future__ import annotations

import re

from jaxserve.server.parsers.block_calls import BlockParser
from jaxserve.server.parsers.call_reader import FoundCall
from jaxserve.server.parsers.typed_values import typed_call

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)


class Qwen3CoderParser(BlockParser):
    """Values that the schema doesn't declare as text are JSON."""

    markers = ("<tool_call>", "</tool_call>")

    def read_block(self, block: str) -> list[FoundCall]:
        functions = whole_matches(_FUNCTION, block)
        calls = [
            typed_call(name.strip(), parameters, self._offered)
            for name, body in functions
            if (parameters := whole_matches(_PARAMETER, body)) or not body.strip()
        ]
        found = [call for call in calls if call is not None]
        return found if len(found) == len(functions) else []


class SeedOssParser(Qwen3CoderParser):
    markers = ("<seed:tool_call>", "</seed:tool_call>")


def whole_matches(pattern: re.Pattern[str], text: str) -> list[tuple[str, str]]:
    """The groups of consecutive matches; none if they aren't all of the text."""
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text) and (match := pattern.match(text, at)):
        found.append((match[1], match[2]))
        at = match.end()
    return found if at == len(text) else []
