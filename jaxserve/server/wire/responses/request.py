"""The request of POST /v1/responses.

Fields are applied, accepted or refused as those of GenerationRequest; see `generation_request`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams, StructuredOutputsParams
from jaxserve.server.wire.generation_request import (
    NO_DEFAULTS,
    BaseGenerationRequest,
    StreamOptions,
    check_scheduling,
)
from jaxserve.server.wire.ignored_fields import ignore
from jaxserve.server.wire.structured_outputs import (
    FormatType,
    StructuredOutputs,
    format_params,
)
from jaxserve.server.wire.tools import Function, FunctionName, ToolUse
from jaxserve.server.wire.validation import parse, renaming

# Fields that SamplingParams has under the same name.
_SAMPLING_FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "min_tokens", "stop_token_ids", "logit_bias", "ignore_eos"),
)
# Tools that would have to be run by this server, and whose absence would change the answer.
_REFUSED_TOOLS = ("mcp", "file_search", "code_interpreter", "computer", "computer_use_preview")
LOGPROBS = "message.output_text.logprobs"


class FunctionTool(Function, kw_only=True, forbid_unknown_fields=True):
    """A function the model may call. In this API its fields are beside the type, not nested."""

    type: Literal["function"]


class FunctionChoice(FunctionName, kw_only=True, forbid_unknown_fields=True):
    """A tool_choice that names the function to call."""

    type: Literal["function"]


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the text. Every schema is applied as if `strict` were true; `name` and
    `description` are ignored."""

    type: FormatType
    schema: dict[str, Any] | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None

    def structured_params(self) -> StructuredOutputsParams | None:
        return format_params(self.type, self.schema, "text.format.schema")


class TextConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: TextFormat | None = None


class ReasoningConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Args: effort: for the model's chat template; ignored if the template doesn't use it."""

    effort: str | None = None


class ResponsesRequest(BaseGenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/responses.

    Args:
        input: a text, or items, which are parsed one by one so that errors name the item.
        instructions: a system message before the input.
        store: false keeps the response out of the server's memory.
        previous_response_id: goes on from a response that is stored; its instructions don't hold
            any more.
        chat_template_kwargs, structured_outputs and sampling settings: vLLM's extras, as in chats.
        include: further parts of the response. Logprobs are added; others don't exist here, and
            are ignored.
        tools: functions; a namespace's functions count too, and tools that OpenAI's own servers
            run are left out.
    """

    input: str | list[dict[str, Any]]
    store: bool | None = None
    previous_response_id: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    stop: str | list[str] | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None

    @property
    def api_names(self) -> Mapping[str, str]:
        return API_NAMES

    def scheduling(self) -> dict[str, Any]:
        return {"priority": self.priority or 0, "cache_salt": self.cache_salt}

    def check(self) -> None:
        check_scheduling(self.priority, self.cache_salt)
        # The last event always has the usage, and no event is padded.
        for name in StreamOptions.__struct_fields__ if self.stream_options else ():
            if getattr(self.stream_options, name):
                ignore(f"stream_options.{name}")

    def tool_use(self) -> ToolUse:
        """Raises InvalidRequestError for tools and a tool_choice that contradict each other."""
        return ToolUse.of(self.functions(), self.tool_choice, self.parallel_tool_calls)

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        names = {"structured_outputs": "text.format.schema"}
        with renaming(API_NAMES), self.tool_use().naming_errors(names):
            yield

    def functions(self) -> dict[str, FunctionTool]:
        """The functions among the tools, by where the request has each.

        Raises:
            InvalidRequestError: one is malformed.
        """
        return dict(_functions(self.tools or (), "tools"))

    def to_sampling_params(self, defaults: Mapping[str, Any] = NO_DEFAULTS) -> SamplingParams:
        """Without max_output_tokens the limit is the context length."""
        own = self.text.format.structured_params() if self.text and self.text.format else None
        forced = self.tool_use().structured_params()
        wanted = LOGPROBS in (self.include or ())
        for name in self.include or ():
            if name != LOGPROBS:
                ignore(f"include[{name}]")
        if self.top_logprobs and not wanted:
            raise InvalidRequestError(f'top_logprobs needs include: ["{LOGPROBS}"]', "top_logprobs")
        if self.structured_outputs is not None:
            if own is not None:
                raise InvalidRequestError(
                    "structured_outputs and text.format both constrain the output: send one of "
                    "them",
                    "structured_outputs",
                )
            own = self.structured_outputs.structured_params()
        given = {name: getattr(self, name) for name in _SAMPLING_FIELDS}
        given = {name: value for name, value in given.items() if value is not None}
        return SamplingParams(
            max_tokens=self.max_output_tokens,
            logprobs=(self.top_logprobs or 0) if wanted else None,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            structured_outputs=forced or own,  # a call that is required comes first
            **{**defaults, **given},
        )


def _functions(tools: Sequence[dict[str, Any]], path: str) -> Iterator[tuple[str, FunctionTool]]:
    for i, tool in enumerate(tools):
        where, kind = f"{path}[{i}]", tool.get("type")
        if kind == "function":
            yield where, parse(tool, FunctionTool, {}, f"{where}.")
        elif kind == "namespace" and isinstance(tool.get("tools"), list):
            yield from _functions(tool["tools"], f"{where}.tools")
        elif kind in _REFUSED_TOOLS:
            raise InvalidRequestError(
                f"{where}: this server runs no tools itself, and doesn't have {kind}: send "
                "functions, and run them yourself",
                f"{where}.type",
            )
        elif isinstance(kind, str):
            ignore(f"{where} of type {kind}")
        else:
            raise InvalidRequestError(f"you must provide {where}.type", f"{where}.type")


# With the values that are accepted because they change nothing; null always is.
RESPONSES_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "context_management": ([],),
    "moderation": (),
    "background_options": (),
    "access_programs": (),
    "image": (),
}

# Fields that the engine and the chat template name otherwise: their name to the API's.
API_NAMES = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "reasoning_effort": "reasoning.effort",
}
