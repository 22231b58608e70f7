"""Request fields that constrain the output, in OpenAI's and vLLM's forms."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import StructuredOutputsParams

FormatType = Literal["text", "json_object", "json_schema"]


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's json_schema. Every schema is applied as if `strict` were true; `name` and
    `description` are ignored."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any]
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's response_format."""

    type: FormatType
    json_schema: JsonSchema | None = None

    def structured_params(self) -> StructuredOutputsParams | None:
        schema = self.json_schema.schema if self.json_schema else None
        return format_params(self.type, schema, "response_format.json_schema")


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's structured_outputs."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    @property
    def given(self) -> list[str]:
        """Names of the fields that are set."""
        return [name for name in self.__struct_fields__ if getattr(self, name) is not None]

    def structured_params(self) -> StructuredOutputsParams:
        choice = None if self.choice is None else tuple(self.choice)
        return StructuredOutputsParams(
            self.json, self.regex, choice, self.grammar, bool(self.json_object)
        )


def format_params(
    kind: FormatType, schema: dict[str, Any] | None, schema_field: str
) -> StructuredOutputsParams | None:
    """The constraint that an output format means; None for free text.

    Args:
        schema_field: where the request has the schema, for the error message.

    Raises:
        InvalidRequestError: a JSON schema is asked for, and there is none.
    """
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if schema is None:
        raise InvalidRequestError(f"you must provide {schema_field}", schema_field)
    return StructuredOutputsParams(json=schema)
