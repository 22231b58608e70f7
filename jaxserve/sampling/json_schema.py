"""JSON schemas as llguidance takes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jaxserve.errors import InvalidRequestError

# llguidance's formats, which it enforces. By JSON Schema's standard, others are annotations.
FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
OPTIONS = "x-guidance"  # llguidance's own key of a whole schema
# White space between two tokens of JSON: enough for any usual layout, so that a model that likes
# white space can't go on with it without end.
BOUNDED_SPACE = {OPTIONS: {"whitespace_pattern": r"[ ]{0,2}(\r?\n([ ]{0,40}|\t{0,10}))?"}}

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_ONE = (
    *("items", "additionalProperties", "additionalItems", "contains", "propertyNames", "not"),
    *("if", "then", "else", "unevaluatedItems", "unevaluatedProperties"),
)
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
# A schema with one of these beside its properties may take others from there.
_COMPOSED = ("allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if", "dependentSchemas")
_SAYS_OF_OTHERS = ("additionalProperties", "unevaluatedProperties", "patternProperties")

Schema = dict[str, Any]


def prepare_schema(text: str) -> str:
    """A schema, as JSON text, without unknown formats and with bounded white space.

    Raises:
        InvalidRequestError: it is nested too deeply.
    """
    schema = json.loads(text)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        return text
    return json.dumps(BOUNDED_SPACE | without_unknown_formats(schema))


def without_unknown_formats(schema: Schema) -> Schema:
    def without(schema: Schema) -> Schema:
        named = schema.get("format")
        if not isinstance(named, str) or named in FORMATS:
            return schema
        return {key: value for key, value in schema.items() if key != "format"}

    return _change_all(schema, without)


def closed(schema: Schema) -> Schema:
    """The schema of a call's arguments without properties that it doesn't name, as OpenAI's strict
    mode has it: objects with named properties that say nothing of others have no others. A value
    of which nothing but its type is known may have any.

    Schemas that are composed with `allOf` stay as they are, because each part would refuse the
    properties of the others.
    """
    if any("allOf" in part for part in _parts(schema)):
        return schema
    if not any(key in schema for key in ("properties", *_COMPOSED)):
        schema = {"properties": {}} | schema  # a function without parameters

    def close(schema: Schema) -> Schema:
        is_open = any(key in schema for key in (*_SAYS_OF_OTHERS, *_COMPOSED))
        if "properties" not in schema or is_open:
            return schema
        return schema | {"additionalProperties": False}

    return _change_all(schema, close)


def parts_of(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """The schemas directly in a schema, each with its path there."""
    for key in _MAPS:
        if isinstance(schema.get(key), dict):
            yield from _objects((f"{key}.{name}", part) for name, part in schema[key].items())
    yield from _objects((key, schema.get(key)) for key in _ONE)
    for key in _LISTS:
        if isinstance(schema.get(key), list):
            yield from _objects((f"{key}[{i}]", part) for i, part in enumerate(schema[key]))


def _objects(named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Schema]]:
    return ((name, part) for name, part in named if isinstance(part, dict))


def _parts(schema: Schema) -> Iterator[Schema]:
    """The schema and all schemas in it."""
    found: list[Schema] = []

    def note(part: Schema) -> Schema:
        found.append(part)
        return part

    _change_all(schema, note)
    yield from found


def _change_all(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    try:
        changed: Schema = _changed(schema, change)
    except RecursionError:
        raise InvalidRequestError(
            "the JSON schema is nested too deeply", "structured_outputs"
        ) from None
    return changed


def _changed(value: Any, change: Callable[[Schema], Schema]) -> Any:
    """A schema with every schema in it changed, itself last."""
    if not isinstance(value, dict):
        return value
    schema = dict(value)
    for key in _MAPS:
        if isinstance(schema.get(key), dict):
            schema[key] = {name: _changed(part, change) for name, part in schema[key].items()}
    for key in _ONE:
        if isinstance(schema.get(key), dict):
            schema[key] = _changed(schema[key], change)
    for key in _LISTS:
        if isinstance(schema.get(key), list):
            schema[key] = [_changed(part, change) for part in schema[key]]
    return change(schema)
