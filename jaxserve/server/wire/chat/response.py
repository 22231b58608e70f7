"""The response of POST /v1/chat/completions: OpenAI's fields, and vLLM's extra ones."""

from __future__ import annotations

import msgspec

from jaxserve.server.wire.chat.messages import ToolCall
from jaxserve.server.wire.logprobs import ChatLogprobs, PromptLogprobsBody
from jaxserve.server.wire.response_fields import ResponseHeader, Usage


class ResponseMessage(msgspec.Struct, kw_only=True):
    """Args: reasoning, reasoning_content: vLLM's two names of one text; absent if there is none."""

    role: str = "assistant"
    content: str | None
    refusal: None = None
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: ResponseMessage
    finish_reason: str
    stop_reason: int | str | None = None
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(ResponseHeader, kw_only=True):
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobsBody | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class FunctionDelta(msgspec.Struct, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to the call with this index; the first has its id, type and name."""

    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None


class ChatDelta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to the message. Fields that are None are left out."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(ResponseHeader, kw_only=True):
    """One event of a streamed chat completion."""

    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
