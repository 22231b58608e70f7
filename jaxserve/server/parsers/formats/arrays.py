"""A marker and a JSON array of calls: the formats of Granite 3 and of Phi-4 mini."""

from __future__ import annotations

from jaxserve.server.parsers.marked_calls import ArrayReader, MarkedCallParser, Reader
from jaxserve.server.wire.call_grammar import CallLayout


class _ArrayParser(MarkedCallParser):
    def _new_reader(self) -> Reader:
        return ArrayReader(self._offered, self.end_marker)

    end_marker = ""


class GraniteParser(_ArrayParser):
    """<|tool_call|>[{"name": ..., "arguments": {...}}]. Granite 4 writes calls as Hermes does."""

    markers = ("<|tool_call|>",)
    layout = CallLayout("<|tool_call|>[", ", ", "]")


class Phi4MiniJsonParser(_ArrayParser):
    """<|tool_call|>[...]<|/tool_call|>; or functools[...], without markers."""

    markers = ("<|tool_call|>", "<|/tool_call|>")
    begins = ("<|tool_call|>", "functools")
    end_marker = "<|/tool_call|>"
    layout = CallLayout("<|tool_call|>[", ", ", "]<|/tool_call|>")
