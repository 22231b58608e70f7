"""Grammars in Lark's notation that make a model write calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxserve.sampling.json_schema import prepare_schema
from jaxserve.sampling.params import FREE_TEXT, StructuredOutputsParams


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


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What comes before the constrained part of an output.

    Args:
        open: the tag that begins it; empty if the prompt ends with it, or if it needs none.
        close: the tag that ends it.
    """

    open: str
    close: str


def output_grammar(
    functions: Sequence[tuple[str, Mapping[str, Any]]] = (),
    layout: CallLayout = REQUIRED_CALLS,
    parallel: bool = True,
    special_ids: Mapping[str, int] | None = None,
    answer: StructuredOutputsParams | None = None,
    reasoning: Reasoning | None = None,
    marker: str = "",
) -> str:
    """A grammar of calls, of an answer in JSON, or of either. Each schema stays a document of its
    own, so that references in it still resolve.

    Args:
        functions: names with the schemas of their arguments; empty for an answer alone.
        parallel: whether several calls may follow one another.
        special_ids: ids of special tokens in the layout and the tags.
        answer: JSON that may come instead of calls.
        reasoning: may come first; without an open tag, it must.
        marker: begins the first call. Any text may come before it, and instead of calls.
    """
    special = special_ids or {}

    def text(written: str) -> str:
        return _terminals(written, special)

    bodies = ["calls"] * bool(functions) + ["answer"] * (answer is not None)
    lines = [f"body: {' | '.join(bodies)}"]
    if functions:
        first = text(layout.first)
        if marker:
            # Text that begins with reasoning is nothing else.
            begun = (
                reasoning.open if reasoning is not None and reasoning.open not in special else ""
            )
            other = f" & ~/[ \\n]*{_pattern(begun)}(.|\\n)*/" if begun else ""
            without = "" if marker in special else f" & ~/(.|\\n)*{_pattern(marker)}(.|\\n)*/"
            lines = [f"body: {FREE_TEXT} | calls", f"{FREE_TEXT}: /(.|\\n)*/{without}{other}"]
            first = _up_to("before_calls", marker, special, lines, other)
            first += f" {text(layout.first.removeprefix(marker))}"
        more = f"({text(layout.between)} call)* " if parallel else ""
        lines.append(f"calls: {first} call {more}{text(layout.last)}")
        lines.append(f"call: {' | '.join(f'call_{i}' for i in range(len(functions)))}")
    if answer is not None:
        form = answer.json if isinstance(answer.json, str) else '{"type": "object"}'
        lines.append(f"answer: %json {prepare_schema(form)}")
    for i, (name, schema) in enumerate(functions):
        begin = text(layout.before_arguments(name))
        lines.append(f"call_{i}: {begin} arguments_{i} {text(layout.after)}")
        lines.append(f"arguments_{i}: %json {json.dumps(schema)}")
    start = "start: body"
    if reasoning is not None:
        end = _up_to("reasoning", reasoning.close, special, lines)
        begun = f"{text(reasoning.open)} {end} /[ \\n\\r\\t]{{0,8}}/"
        start = f"start: ({begun})? body" if reasoning.open else f"start: {begun} body"
    return "\n".join([start, *lines])


def _up_to(
    name: str, marker: str, special_ids: Mapping[str, int], lines: list[str], other: str = ""
) -> str:
    """What matches any text up to a marker, the marker included; its rules are added to lines.

    Args:
        other: a further condition on the text.
    """
    terminal = f"{FREE_TEXT}_{name.upper()}"
    if marker in special_ids:  # which no text has
        lines.append(f"{name}: {terminal} {_terminals(marker, special_ids)}")
        lines.append(f"{terminal}: /(.|\\n)*/{other}")
    else:
        lines.append(f"{name}[lazy]: {terminal}")
        lines.append(f"{terminal}: /(.|\\n)*{_pattern(marker)}/{other}")
    return name


def _pattern(text: str) -> str:
    """A text as a part of an expression of Lark's."""
    return re.escape(text).replace("/", "\\/")


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
