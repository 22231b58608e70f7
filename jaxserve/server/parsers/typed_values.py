"""Arguments that a model writes as bare text: their JSON values, by the tool's schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jaxserve.server.parsers.call_reader import FoundCall, Offered, arguments_text, load_json

_TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
    type(None): "null",
}


def typed_call(name: str, texts: Iterable[tuple[str, str]], offered: Offered) -> FoundCall | None:
    """A call whose arguments are texts. None if the tool isn't offered, or one comes twice."""
    if name not in offered:
        return None
    properties = offered[name].get("properties")
    arguments: dict[str, Any] = {}
    for key, text in texts:
        if key in arguments:
            return None
        known = properties.get(key) if isinstance(properties, Mapping) else None
        arguments[key] = typed_value(text, known if isinstance(known, Mapping) else {})
    written = arguments_text(arguments)
    return None if written is None else FoundCall(name, written)


def typed_value(text: str, schema: Mapping[str, Any]) -> Any:
    """The value of a text: JSON where the schema allows a type other than text and the text is of
    that type; else the text."""
    types = _types_of(schema)
    if types == {"string"} or (not types and not _looks_like_json(text)):
        return text
    value = load_json(text)
    if value is False and text.strip() != "false":
        return text
    kind = _TYPES[type(value)]
    fits = not types or kind in types or (kind == "integer" and "number" in types)
    return value if fits and kind != "string" else text


def _looks_like_json(text: str) -> bool:
    """Whether a text of unknown type is an object or an array; numbers may be names."""
    return text.strip()[:1] in ("{", "[")


def _types_of(schema: Mapping[str, Any]) -> set[str]:
    """The types that a schema allows; empty if it doesn't say."""
    named = schema.get("type")
    if isinstance(named, str):
        return {named}
    if isinstance(named, list):
        return {kind for kind in named if isinstance(kind, str)}
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return {_TYPES[type(value)] for value in values if type(value) in _TYPES}
    types: set[str] = set()
    for key in ("anyOf", "oneOf"):
        for part in schema.get(key, ()) if isinstance(schema.get(key), list) else ():
            if isinstance(part, Mapping):
                types |= _types_of(part)
    return types


def named_json_call(name: str, arguments: str, offered: Offered) -> FoundCall | None:
    """A call of a name and the JSON text of its arguments; None if it isn't one."""
    if name not in offered:
        return None
    text = arguments.strip()
    if text and not isinstance(load_json(text), dict):
        return None
    written = arguments_text(text)
    return None if written is None else FoundCall(name, written)
