"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from __future__ import annotations

from jaxserve.server.api.messages.handler import count_tokens, create_message

__all__ = ["count_tokens", "create_message"]
