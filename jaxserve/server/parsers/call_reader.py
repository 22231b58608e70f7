"""From JSON to a call of an offered tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from jaxserve.server.parsers.text_parser import ParsedDelta
from jaxserve.text.surrogates import without_half_surrogates

# The tools that may be called: the schema of each one's arguments by its name.
Offered = Mapping[str, Mapping[str, Any]]

# Keys of a JSON object that, without a marker before it, is a call and not an answer in JSON.
_BARE_KEYS = frozenset({"type", "id", "name", "arguments", "parameters"})


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A complete call. Args: arguments: JSON text of an object."""

    name: str
    arguments: str

    def deltas(self) -> list[ParsedDelta]:
        return [ParsedDelta("call", self.name), ParsedDelta("arguments", self.arguments)]


def read_call(text: str, offered: Offered) -> FoundCall | None:
    """The call that a JSON object describes; None if it isn't a call of an offered tool."""
    value = load_json(text)
    return call_of(value, offered) if isinstance(value, dict) else None


def read_bare_call(text: str, offered: Offered) -> FoundCall | None:
    """As read_call(), for an object that may also be an answer in JSON."""
    value = load_json(text)
    if not isinstance(value, dict) or not value.keys() <= _BARE_KEYS:
        return None
    has_arguments = "arguments" in value or "parameters" in value
    return call_of(value, offered) if has_arguments else None


def call_of(value: dict[str, Any], offered: Offered) -> FoundCall | None:
    name = value.get("name")
    arguments = arguments_text(value.get("arguments", value.get("parameters")))
    if not isinstance(name, str) or name not in offered or arguments is None:
        return None
    return FoundCall(name, arguments)


def arguments_text(arguments: Any) -> str | None:
    """JSON text of a call's arguments: null and an empty text are an object without fields, and
    some models write the object as a text. None for anything else."""
    if isinstance(arguments, str):
        arguments = load_json(arguments) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return None
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):  # a number beyond a double
        return None
    return without_half_surrogates(text)


def load_json(text: str) -> Any:
    """A JSON value; a text that isn't JSON is False, which no caller takes."""
    try:
        # Models write line breaks into strings, which strict JSON doesn't allow.
        return json.loads(text, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} isn't JSON")
