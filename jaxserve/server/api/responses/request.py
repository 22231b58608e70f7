"""The request of /v1/responses, each field honoured here or refused by a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams, StructuredOutputsParams
from jaxserve.server.wire.requests import NO_DEFAULTS, EngineRequest
from jaxserve.server.wire.tools import Function, FunctionName, ToolUse

LOGPROBS = "message.output_text.logprobs"


class FunctionTool(Function, kw_only=True, forbid_unknown_fields=True):
    """A function the model may call; this API has its fields beside the type."""

    type: Literal["function"]


class FunctionChoice(FunctionName, kw_only=True, forbid_unknown_fields=True):
    """A tool_choice that names the function to call."""

    type: Literal["function"]


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the text must be; `strict` is always so, `name` and `description` are for the caller."""

    type: Literal["text", "json_object", "json_schema"]
    schema: dict[str, Any] | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None

    def structured(self) -> StructuredOutputsParams | None:
        if self.type == "json_object":
            return StructuredOutputsParams(json_object=True)
        if self.type == "text":
            return None
        if self.schema is None:
            raise InvalidRequestError("you must provide text.format.schema", "text.format.schema")
        return StructuredOutputsParams(json=self.schema)


class TextConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Args: effort: for the model's chat template; refused if it doesn't know it."""

    effort: str | None = None


class ResponsesRequest(EngineRequest, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/responses.

    Args:
        input: a text, or items, which are read one by one so that errors name their place.
        instructions: a system message before them.
        include: what else to answer with; logprobs are the one thing there is.
    """

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def names(self) -> Mapping[str, str]:
        return NAMES

    def tool_use(self) -> ToolUse:
        """Raises InvalidRequestError for tools or a tool_choice that can't be."""
        return ToolUse.of(self.tools or (), self.tool_choice, self.parallel_tool_calls)

    def to_sampling_params(self, defaults: Mapping[str, Any] = NO_DEFAULTS) -> SamplingParams:
        """Without a limit, up to the context's."""
        own = self.text.format.structured() if self.text and self.text.format else None
        forced = self.tool_use().structured()
        if own and forced:
            raise InvalidRequestError(
                "tool_choice requires a call, which leaves no room for text.format: send one",
                "tool_choice",
            )
        wanted = LOGPROBS in (self.include or ())
        if self.top_logprobs and not wanted:
            raise InvalidRequestError(f'top_logprobs needs include: ["{LOGPROBS}"]', "top_logprobs")
        given = {"temperature": self.temperature, "top_p": self.top_p}
        given = {name: value for name, value in given.items() if value is not None}
        return SamplingParams(
            max_tokens=self.max_output_tokens,
            logprobs=(self.top_logprobs or 0) if wanted else None,
            structured_outputs=own or forced,
            **{**defaults, **given},
        )


# Values that ask for nothing; null always does.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "store": (False,),
    "previous_response_id": (),
    "conversation": (),
    "prompt": (),
    "truncation": ("disabled",),
    "service_tier": ("auto", "default"),
    "stream_options": ({}, {"include_obfuscation": False}),
    "max_tool_calls": (),
    "context_management": ([],),
    "prompt_cache_retention": (),
    "prompt_cache_options": (),
    "moderation": (),
    "background_options": (),
    "access_programs": (),
    "image": (),
}

# What the engine and the chat template call otherwise.
NAMES = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "reasoning_effort": "reasoning.effort",
    "structured_outputs": "text.format",
}
