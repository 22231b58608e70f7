"""Why llguidance refuses a grammar, and which part of it is at fault."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

from llguidance import LLMatcher

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.json_schema import OPTIONS, parts_of

FIELD = "structured_outputs"
SEARCH_S = 0.2  # processor time for finding the part of a schema that is at fault
_DEFINITIONS = ("$defs", "definitions", OPTIONS)  # keys of a whole schema that its parts need
_EXCERPT = re.compile(r"\n\s+\d+ \| ")  # the lines of a grammar around an error
_AT_LINE = re.compile(r"at (?P<line>\d+)\(\d+\): failed to compile JSON schema: ")
_JSON_RULE = re.compile(r"\s*(?P<name>\w+)\s*:\s*%json (?P<schema>.*)")


def refusal(message: str, grammar: str | None, schema: str | None) -> InvalidRequestError:
    """The error for a grammar that llguidance refuses. `param` is FIELD, followed by the rule's
    name if a schema inside a grammar is at fault, and by the path of the schema's faulty part, as
    in "structured_outputs.properties.city".

    Args:
        message: llguidance's.
        grammar: in Lark's notation; None if there is a schema or neither.
        schema: a JSON schema, as text.
    """
    path = FIELD
    at = _AT_LINE.match(message)
    if at and grammar is not None:
        rule = _JSON_RULE.match(grammar.splitlines()[int(at["line"]) - 1])
        if rule:
            path, schema, message = f"{FIELD}.{rule['name']}", rule["schema"], message[at.end() :]
    if schema is not None:
        path += faulty_part(schema)
    return InvalidRequestError(f"{path}: the grammar can't be used: {_reason(message)}", path)


def faulty_part(text: str) -> str:
    """Path of the smallest part of a JSON schema that llguidance refuses for the same reason as the
    whole, such as ".properties.city.items"; "" if that is the whole."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(schema, dict):
        return ""
    shared = {key: schema[key] for key in _DEFINITIONS if key in schema}
    reason, path, until = _refused(schema), "", time.thread_time() + SEARCH_S
    if not reason:  # it can be compiled, but not followed
        return ""
    while (found := _part_refused(schema, shared, reason, until)) is not None:
        path, schema = f"{path}.{found[0]}", found[1]
    return path


def _part_refused(
    schema: dict[str, Any], shared: dict[str, Any], reason: str, until: float
) -> tuple[str, dict[str, Any]] | None:
    for name, part in _nested(schema):
        if time.thread_time() > until:
            return None
        if _refused(shared | part) == reason:
            return name, part
    return None


def _nested(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        yield from parts_of(schema)
    except RecursionError:
        return


def _refused(schema: dict[str, Any]) -> str:
    """llguidance's reason for refusing a schema; "" if it takes it."""
    try:
        text = json.dumps(schema)
    except RecursionError:
        return ""
    return str(LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(text)))


def _reason(message: str) -> str:
    """A message of several lines in one: what is wrong, without the excerpt of the grammar."""
    text = _EXCERPT.split(message.strip())[0]
    first, *others = text.splitlines() or ["unknown reason"]
    errors = [line.removeprefix("error: ") for line in others if line.startswith("error: ")]
    return " ".join([first, *errors])
