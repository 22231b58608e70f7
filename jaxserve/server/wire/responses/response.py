"""The response of POST /v1/responses, with OpenAI's fields."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from jaxserve.server.wire.logprobs import ChatLogprob

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(msgspec.Struct, kw_only=True):
    type: str = "output_text"
    text: str = ""
    annotations: list[Any] = []
    logprobs: list[ChatLogprob] = []


class ReasoningText(msgspec.Struct, kw_only=True):
    type: str = "reasoning_text"
    text: str = ""


class MessageItem(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: Status = "in_progress"
    role: str = "assistant"
    content: list[OutputText] = []


class ReasoningItem(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    status: Status = "in_progress"
    summary: list[Any] = []
    content: list[ReasoningText] = []


class FunctionCallItem(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    status: Status = "in_progress"
    call_id: str
    name: str
    arguments: str = ""


Item = MessageItem | ReasoningItem | FunctionCallItem


class InputTokensDetails(msgspec.Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class Response(msgspec.Struct, kw_only=True):
    """The whole response, with the settings that were used."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: Status = "in_progress"
    model: str
    output: list[Item] = []
    error: dict[str, str] | None = None
    incomplete_details: dict[str, str] | None = None
    usage: ResponseUsage | None = None
    instructions: str | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    top_logprobs: int
    text: dict[str, Any]
    reasoning: dict[str, Any]
    tools: list[Any]
    tool_choice: Any
    parallel_tool_calls: bool
    metadata: dict[str, str]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    background: bool = False
    store: bool = False
    previous_response_id: str | None = None
    max_tool_calls: None = None
    service_tier: str = "default"
    truncation: str = "disabled"
