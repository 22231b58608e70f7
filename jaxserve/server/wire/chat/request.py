"""The request of POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import msgspec

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams, StructuredOutputsParams
from jaxserve.server.wire.generation_request import (
    GENERATION_UNSUPPORTED,
    NO_DEFAULTS,
    GenerationRequest,
)
from jaxserve.server.wire.tools import NamedToolChoice, Tool, ToolUse
from jaxserve.server.wire.validation import renaming


class PredictionPart(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"
):
    text: str


class Prediction(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="content"
):
    """What the answer may repeat in large parts, as a file in which something is to be changed."""

    content: str | list[PredictionPart]

    def add_to(self, params: SamplingParams) -> SamplingParams:
        """The params with its text."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return replace(params, prediction=text or None)


class ChatCompletionRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions.

    Args:
        messages: ChatMessages, parsed one by one so that errors name the message.
        continue_final_message: continue the last message's text instead of a new message.
        chat_template_kwargs, documents: for the model's chat template; refused if it doesn't use
            them.
        reasoning_effort: for the model's chat template; ignored if it doesn't use it.
        include_reasoning: false leaves the reasoning out of the response.
        prediction: changes the speed alone; see SamplingParams.prediction.
    """

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    prediction: Prediction | None = None

    def tool_use(self) -> ToolUse:
        """Raises InvalidRequestError for tools and a tool_choice that contradict each other."""
        functions = {
            f"tools[{i}].function": tool.function for i, tool in enumerate(self.tools or ())
        }
        asked = self.tool_choice
        choice = asked.function if isinstance(asked, NamedToolChoice) else asked
        return ToolUse.of(functions, choice, self.parallel_tool_calls)

    def structured_params(self) -> StructuredOutputsParams | None:
        own, forced = super().structured_params(), self.tool_use().structured_params()
        if own and forced and self.response_format is None:
            raise InvalidRequestError(
                "tool_choice requires a call, so the output can't also match structured_outputs or "
                "guided_*: send one of them",
                "tool_choice",
            )
        return forced or own  # a call that is required comes before response_format

    def to_sampling_params(self, defaults: Mapping[str, Any] = NO_DEFAULTS) -> SamplingParams:
        """max_completion_tokens takes precedence over max_tokens; without either, the limit is
        the context length."""
        limit = self.max_completion_tokens
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs: true", "top_logprobs")
        top = (self.top_logprobs or 0) if self.logprobs else None
        with renaming({"logprobs": "top_logprobs"}):
            limit = self.max_tokens if limit is None else limit
            params = self.sampling_params(limit, top, defaults)
        return params if self.prediction is None else self.prediction.add_to(params)

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        with renaming(self.api_names), self.tool_use().naming_errors(self.constraint_names):
            yield

    @property
    def api_names(self) -> Mapping[str, str]:
        limit = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return {"prompt": "messages", "max_tokens": limit, "logprobs": "top_logprobs"}


CHAT_UNSUPPORTED: dict[str, tuple[Any, ...]] = GENERATION_UNSUPPORTED | {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "moderation": (),
    # vLLM's extras
    "echo": (False,),
    "chat_template": (),
    "mm_processor_kwargs": (),
    "media_io_kwargs": (),
    "thinking_token_budget": (),
}
