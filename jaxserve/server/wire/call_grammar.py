"""Grammars in Lark's notation that make a model write calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxserve.sampling.json_schema import prepare_schema
from jaxserve.sampling.params import StructuredOutputsParams


@dataclass(frozen=True, slots=True)
class CallLayout:
    """How calls are written.

    Args:
        first, between, last: what is before the first call, between two and after the last one.
        key: of the arguments in a call's JSON object.
        before, after: what is around the arguments' JSON, if a call isn't one JSON object; {name}
            stands for the function's name, and {n} for a number.
    """

    first: str
    between: str
    last: str
    key: str = "arguments"
    before: str | None = None
    after: str = "}"

    def before_arguments(self, name: str) -> str:
        if self.before is None:
            return f'{{"name": "{name}", "{self.key}": '
        return self.before.replace("{name}", name)


REQUIRED_CALLS = CallLayout("[", ", ", "]", "parameters")  # where a grammar forces calls alone


def calls_grammar(
    functions: Sequence[tuple[str, Mapping[str, Any]]],
    layout: CallLayout,
    parallel: bool,
    special_ids: Mapping[str, int] | None = None,
    answer: StructuredOutputsParams | None = None,
) -> str:
    """A grammar of calls. Each function's schema stays a document of its own, so that references in
    it still resolve.

    Args:
        functions: names with the schemas of their arguments.
        parallel: whether several calls may follow one another.
        special_ids: ids of special tokens in the layout.
        answer: JSON that may come instead of calls.
    """

    def text(written: str) -> str:
        return _terminals(written, special_ids or {})

    calls = range(len(functions))
    more = f"({text(layout.between)} call)* " if parallel else ""
    lines = [
        "start: calls | answer" if answer else "start: calls",
        f"calls: {text(layout.first)} call {more}{text(layout.last)}",
        f"call: {' | '.join(f'call_{i}' for i in calls)}",
    ]
    if answer is not None:
        form = answer.json if isinstance(answer.json, str) else '{"type": "object"}'
        lines.append(f"answer: %json {prepare_schema(form)}")
    for i, (name, schema) in zip(calls, functions, strict=True):
        begin = text(layout.before_arguments(name))
        lines.append(f"call_{i}: {begin} arguments_{i} {text(layout.after)}")
        lines.append(f"arguments_{i}: %json {json.dumps(schema)}")
    return "\n".join(lines)


_NUMBER = "/[0-9]{1,3}/"


def _terminals(written: str, special_ids: Mapping[str, int]) -> str:
    """A text as Lark's terminals: a special token is written by its id, because its name's letters
    are other tokens."""
    if not written:
        return ""
    names = "|".join(map(re.escape, special_ids)) or "(?!)"
    parts = re.split(f"({names}|{{n}})", written)
    return " ".join(
        _NUMBER
        if part == "{n}"
        else f"<[{special_ids[part]}]>"
        if part in special_ids
        else json.dumps(part)
        for part in parts
        if part
    )
