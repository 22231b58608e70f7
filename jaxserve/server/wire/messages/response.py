"""The responses of /v1/messages and /v1/messages/count_tokens, and their errors."""

from __future__ import annotations

from typing import Any

import msgspec

from jaxserve.server.wire.errors import ApiError

PATH = "/v1/messages"


class TextBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
    text: str = ""
    citations: None = None


class ThinkingBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking"):
    """Args: signature: of the thinking's text; it isn't verified when the block comes back."""

    thinking: str = ""
    signature: str = ""


class ToolUseBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any] = {}


Block = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(msgspec.Struct, kw_only=True):
    """Args:
    input_tokens: of the prompt, those that weren't found in the prefix cache.
    cache_read_input_tokens: those that were.
    """

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    service_tier: str = "standard"


class Message(msgspec.Struct, kw_only=True):
    """Args:
    stop_reason: end_turn, max_tokens, stop_sequence, tool_use, or model_context_window_exceeded.
    stop_sequence: the one of the request that ended the answer.
    """

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[Block] = []
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class TokensCounted(msgspec.Struct):
    input_tokens: int


_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def message_error(error: ApiError, request_id: str) -> dict[str, Any]:
    """The body of an error in Anthropic's form."""
    kind = _ERROR_TYPES.get(error.status, "api_error")
    details = {"type": kind, "message": error.message}
    return {"type": "error", "error": details, "request_id": request_id}
