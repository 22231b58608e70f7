"""Tools in a request: their types, and the constraint that a required call puts on the output."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.json_schema import OPTIONS, closed, without_unknown_formats
from jaxserve.sampling.params import StructuredOutputsParams
from jaxserve.server.wire.call_grammar import CallLayout, Reasoning, output_grammar
from jaxserve.server.wire.validation import renaming

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
# llguidance's own key in a schema. It allows no optional white space, so that a model which must
# call can't generate white space without end.
_COMPACT = {OPTIONS: {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}


class Function(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A function the model may call.

    Args:
        parameters: a JSON schema of an object; without one there are no parameters.
        strict: has no effect: calls that tool_choice forces always match the schema.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def schema(self) -> dict[str, Any]:
        return self.parameters or _NO_PARAMETERS

    @property
    def compact_schema(self) -> dict[str, Any]:
        """The schema for the grammar of a call, which allows no optional white space and, where the
        schema says nothing of them, no additional properties."""
        return closed(without_unknown_formats(self.schema)) | _COMPACT


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's tool, of the only type that the client runs itself."""

    type: Literal["function"]
    function: Function


class FunctionName(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str


class NamedToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool_choice that names the function to call."""

    type: Literal["function"]
    function: FunctionName


ToolMode = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Whether and how the model may call tools.

    Args:
        mode: "required": the model must call tools; if `named` is set, the tool of that name.
        parallel: whether one response may have several calls.
        paths: where the request has each function, such as "tools[0].function".
        schema_field: the API's name of a function's schema.
    """

    functions: tuple[Function, ...] = ()
    mode: ToolMode = "none"
    named: str | None = None
    parallel: bool = True
    paths: tuple[str, ...] = ()
    schema_field: str = "parameters"

    @classmethod
    def of(
        cls,
        functions: Mapping[str, Function],
        choice: ToolMode | FunctionName | None,
        parallel: bool | None,
        schema_field: str = "parameters",
    ) -> ToolUse:
        """From a request's fields, which are checked against one another.

        Args:
            functions: by where the request has each, such as "tools[0].function".
            choice: the mode, the function that must be called, or None for the API's default.

        Raises:
            InvalidRequestError: a function's name is malformed or comes twice, or tool_choice
                needs a tool that isn't there.
        """
        named = choice.name if isinstance(choice, FunctionName) else None
        names: set[str] = set()
        for path, function in functions.items():
            if not _NAME.fullmatch(function.name):
                raise InvalidRequestError(
                    f"{path}.name: a function's name must have 1 to 128 letters, digits, _ or -; "
                    f"it was {function.name!r}",
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
        mode: ToolMode = "required" if named is not None or choice == "required" else "auto"
        return cls(
            tuple(functions.values()),
            mode,
            named,
            parallel is not False,
            tuple(functions),
            schema_field,
        )

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

    def structured_params(self) -> StructuredOutputsParams | None:
        """The constraint on the output; None unless a call is required."""
        if self.mode != "required":
            return None
        if self.named is not None:
            (schema,) = (f.compact_schema for f in self.functions if f.name == self.named)
            return StructuredOutputsParams(json=schema)
        return StructuredOutputsParams(
            grammar=output_grammar(self._schemas(), parallel=self.parallel)
        )

    @contextmanager
    def naming_errors(self, answer_names: Mapping[str, str]) -> Iterator[None]:
        """Gives InvalidRequestErrors about a schema in a grammar the tool's name and the request's
        own path of the schema.

        Args:
            answer_names: as of renaming(), for a grammar that isn't one of calls.
        """
        names = {} if self.mode == "required" else dict(answer_names)
        names |= {f"{name}.answer": field for name, field in answer_names.items()}
        for i, (path, function) in enumerate(zip(self.paths, self.functions, strict=True)):
            schema = f"{path}.{self.schema_field}"
            names[f"structured_outputs.arguments_{i}"] = schema
            if function.name == self.named:
                names["structured_outputs"] = names["structured_outputs.answer"] = schema
        try:
            with renaming(names):
                yield
        except InvalidRequestError as error:
            for path, function in zip(self.paths, self.functions, strict=True):
                if (error.param or "").startswith(f"{path}."):
                    message = f"the tool {function.name}: {error}"
                    raise InvalidRequestError(message, error.param, error.code) from None
            raise

    def required_after(
        self, reasoning: Reasoning, special_ids: Mapping[str, int]
    ) -> StructuredOutputsParams:
        """structured_params() after reasoning. Args: as of output_grammar()."""
        if self.named is not None:
            (schema,) = (f.compact_schema for f in self.functions if f.name == self.named)
            return answer_after(reasoning, special_ids, StructuredOutputsParams(json=schema))
        grammar = output_grammar(
            self._schemas(),
            parallel=self.parallel,
            special_ids=special_ids,
            reasoning=reasoning,
        )
        return StructuredOutputsParams(grammar=grammar)

    def optional_calls(
        self,
        layout: CallLayout,
        marker: str,
        special_ids: Mapping[str, int],
        reasoning: Reasoning | None,
        answer: StructuredOutputsParams | None,
    ) -> StructuredOutputsParams:
        """The constraint on an output that may have calls: where one begins, it has the name and
        the arguments of a function. A schema that can't be a grammar is left to the model, unless
        its function is strict.

        Args:
            marker: begins calls, in a text; not used if there is an answer in JSON.
            layout, special_ids, reasoning, answer: as of output_grammar().
        """
        grammar = output_grammar(
            self._schemas(),
            layout,
            self.parallel,
            special_ids,
            answer,
            reasoning,
            marker if answer is None else "",
        )
        strict = answer is not None or any(function.strict for function in self.functions)
        return StructuredOutputsParams(grammar=grammar, is_optional=not strict)

    def _schemas(self) -> list[tuple[str, dict[str, Any]]]:
        return [(function.name, function.compact_schema) for function in self.functions]


def answer_after(
    reasoning: Reasoning, special_ids: Mapping[str, int], answer: StructuredOutputsParams
) -> StructuredOutputsParams:
    """The constraint on an answer in JSON that comes after reasoning."""
    grammar = output_grammar(special_ids=special_ids, answer=answer, reasoning=reasoning)
    return StructuredOutputsParams(grammar=grammar)
