"""Tools that a request offers the model: their wire types, and what they ask of its output."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import StructuredOutputsParams
from jaxserve.server.parsers import NamedCall, RequiredCalls, ToolParser

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
# llguidance's own key in a schema: a model that is forced to call can't run on in white space.
_COMPACT = {
    "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
}


class Function(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function the model may call.

    Args:
        parameters: a JSON schema of an object; without one there are no parameters.
        strict: calls that tool_choice forces always match the schema.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def schema(self) -> dict[str, Any]:
        return self.parameters or _NOTHING

    @property
    def compact_schema(self) -> dict[str, Any]:
        """The same for the grammar of a forced call."""
        return self.schema | _COMPACT


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's tool, of the one type that a server can leave to its client."""

    type: Literal["function"]
    function: Function


class FunctionName(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str


class NamedChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool_choice that names the function to call."""

    type: Literal["function"]
    function: FunctionName


Mode = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request lets the model do with tools.

    Args:
        mode: "required" means the model must call tools; with `named`, that one.
        parallel: whether it may call several at once.
    """

    functions: tuple[Function, ...] = ()
    mode: Mode = "none"
    named: str | None = None
    parallel: bool = True

    @classmethod
    def of(
        cls,
        functions: Sequence[Function],
        choice: Mode | FunctionName | None,
        parallel: bool | None,
    ) -> ToolUse:
        """Checks a request's fields against one another.

        Args:
            choice: the mode, the function that must be called, or None for the API's default.

        Raises:
            InvalidRequestError: a name is malformed or comes twice, or nothing goes by that of
                tool_choice.
        """
        named = choice.name if isinstance(choice, FunctionName) else None
        names: set[str] = set()
        for i, function in enumerate(functions):
            if not _NAME.fullmatch(function.name):
                raise InvalidRequestError(
                    f"tools[{i}]: a function's name has 1 to 64 letters, digits, _ and -; it was "
                    f"{function.name!r}",
                    "tools",
                )
            if function.name in names:
                raise InvalidRequestError(f"tools has {function.name} twice", "tools")
            names.add(function.name)
        if named is not None and named not in names:
            raise InvalidRequestError(
                f"tool_choice names {named}, which isn't among the tools", "tool_choice"
            )
        if choice == "required" and not functions:
            raise InvalidRequestError("tool_choice is required, but tools is empty", "tool_choice")
        if not functions or choice == "none":
            return cls()
        mode: Mode = "required" if named is not None or choice == "required" else "auto"
        return cls(tuple(functions), mode, named, parallel is not False)

    def for_template(self) -> list[dict[str, Any]] | None:
        """The tools as chat templates expect them; None if there are none."""
        return [
            {
                "type": "function",
                "function": {
                    "name": function.name,
                    "description": function.description or "",
                    "parameters": function.schema,
                },
            }
            for function in self.functions
        ] or None

    def structured(self) -> StructuredOutputsParams | None:
        """What the output must match, if a call is required."""
        if self.mode != "required":
            return None
        if self.named is not None:
            (schema,) = (f.compact_schema for f in self.functions if f.name == self.named)
            return StructuredOutputsParams(json=schema)
        return StructuredOutputsParams(grammar=_calls_grammar(self.functions, self.parallel))

    def parser(self, by_model: type[ToolParser] | None) -> Callable[[], ToolParser] | None:
        """Makes parsers of the output.

        Args:
            by_model: how the model writes calls when it is free to.
        """
        if self.mode == "auto":
            return by_model
        if self.mode == "none":
            return None
        named = self.named
        return RequiredCalls if named is None else lambda: NamedCall(named)


def _calls_grammar(functions: Sequence[Function], parallel: bool) -> str:
    """Lark for a JSON array of calls; each function's schema stays a document of its own, so that
    its references hold."""
    calls = range(len(functions))
    lines = [
        'start: "[" call (", " call)* "]"' if parallel else 'start: "[" call "]"',
        f"call: {' | '.join(f'call_{i}' for i in calls)}",
    ]
    for i, function in zip(calls, functions, strict=True):
        begin = json.dumps(f'{{"name": "{function.name}", "parameters": ')
        lines.append(f'call_{i}: {begin} arguments_{i} "}}"')
        lines.append(f"arguments_{i}: %json {json.dumps(function.compact_schema)}")
    return "\n".join(lines)
