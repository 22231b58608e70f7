"""The requests of POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams, StructuredOutputsParams
from jaxserve.server.wire.generation_request import NO_DEFAULTS, BaseGenerationRequest
from jaxserve.server.wire.ignored_fields import ignore
from jaxserve.server.wire.structured_outputs import StructuredOutputs
from jaxserve.server.wire.tools import Function, FunctionName, ToolMode, ToolUse
from jaxserve.server.wire.validation import parse, renaming

SCHEMA_FIELD = "input_schema"  # of a tool


class CustomTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool that the client runs. Args: input_schema: a JSON schema of an object."""

    name: str
    type: Literal["custom"] | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Args: type: "any" requires a call, "tool" one of the named tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Args: budget_tokens: ignored."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None


class OutputFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Args: effort: for the model's chat template; ignored if the template doesn't use it."""

    format: OutputFormat | None = None
    effort: str | None = None


class CountTokensRequest(BaseGenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/messages/count_tokens.

    Args:
        messages: parsed one by one so that errors name the message.
        system: a text, or blocks of text.
        tools: only those that the client runs.
        thinking: has the model reason, if its chat template lets requests choose; without it or
            "disabled", the response is without reasoning.
    """

    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None

    @property
    def thinks(self) -> bool:
        return self.thinking is not None and self.thinking.type != "disabled"

    def tool_use(self) -> ToolUse:
        """Raises InvalidRequestError for a tool that is malformed or that this server would have to
        run, and for a tool_choice that contradicts the tools."""
        paths = [f"tools[{i}]" for i in range(len(self.tools or ()))]
        functions = {p: _function(t, p) for p, t in zip(paths, self.tools or (), strict=True)}
        asked = self.tool_choice
        if asked is None:
            return ToolUse.of(functions, None, None, SCHEMA_FIELD)
        if asked.type == "tool" and asked.name is None:
            raise InvalidRequestError("you must provide tool_choice.name", "tool_choice.name")
        modes: dict[str, ToolMode] = {"auto": "auto", "any": "required", "none": "none"}
        choice = FunctionName(name=asked.name or "") if asked.type == "tool" else modes[asked.type]
        return ToolUse.of(functions, choice, not asked.disable_parallel_tool_use, SCHEMA_FIELD)


class MessagesRequest(CountTokensRequest, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/messages.

    Args:
        max_tokens: most tokens of the answer; the context may leave fewer.
        stop_sequences: texts that end the answer.
        metadata: labels the request for the caller's own records.
        structured_outputs: vLLM's, as in chats; not together with output_config.format.
    """

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None

    @property
    def api_names(self) -> Mapping[str, str]:
        return {"prompt": "messages", "stop": "stop_sequences"}

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        form = "output_config.format.schema" if self.output_config else "output_format.schema"
        if self.structured_outputs is not None and self.structured_outputs.given:
            form = f"structured_outputs.{self.structured_outputs.given[0]}"
        names = {"structured_outputs": form}
        with renaming(self.api_names), self.tool_use().naming_errors(names):
            yield

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    def check(self) -> None:
        if self.max_tokens < 1:
            raise InvalidRequestError("max_tokens must be at least 1", "max_tokens")
        if self.thinking is not None and self.thinking.budget_tokens is not None:
            ignore("thinking.budget_tokens")

    def to_sampling_params(self, defaults: Mapping[str, Any] = NO_DEFAULTS) -> SamplingParams:
        """Without max_tokens, which is no more than the context leaves."""
        given = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        given = {name: value for name, value in given.items() if value is not None}
        form = (self.output_config and self.output_config.format) or self.output_format
        own = StructuredOutputsParams(json=form.schema) if form else None
        if self.structured_outputs is not None:
            if own is not None:
                raise InvalidRequestError(
                    "structured_outputs and output_config.format both constrain the output: send "
                    "one of them",
                    "structured_outputs",
                )
            own = self.structured_outputs.structured_params()
        return SamplingParams(
            max_tokens=None,
            stop=tuple(self.stop_sequences or ()),
            structured_outputs=self.tool_use().structured_params() or own,
            **{**defaults, **given},
        )


def _function(tool: dict[str, Any], path: str) -> Function:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise InvalidRequestError(
            f"{path}: this server runs no tools itself, and doesn't have {kind!r}: send tools with "
            "an input_schema, and run them yourself",
            f"{path}.type",
        )
    parsed = parse(tool, CustomTool, {}, f"{path}.")
    return Function(
        name=parsed.name,
        description=parsed.description,
        parameters=parsed.input_schema,
        strict=parsed.strict,
    )


# With the values that are accepted because they change nothing; null always is.
MESSAGES_UNSUPPORTED: dict[str, tuple[Any, ...]] = {"mcp_servers": ([],), "container": ()}
