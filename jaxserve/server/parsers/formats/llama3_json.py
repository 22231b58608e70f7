"""{"name": ..., "parameters": {...}} at the beginning of the output: Llama 3's format."""

from __future__ import annotations

from jaxserve.server.parsers.object_calls import ObjectsParser
from jaxserve.server.wire.call_grammar import CallLayout


class Llama3JsonParser(ObjectsParser):
    """{"name": ..., "parameters": {...}} at the beginning of the output; several are separated by
    semicolons, and Llama 3 may write <|python_tag|> before them."""

    markers = ("<|python_tag|>",)
    layout = CallLayout("<|python_tag|>", "; ", "", "parameters")
    needs_marker = False
    _first, _separator = markers[0], ";"
