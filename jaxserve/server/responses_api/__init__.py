"""POST /v1/responses: OpenAI's newer API, without its storage."""

from __future__ import annotations

from jaxserve.server.responses_api.handler import create_response

__all__ = ["create_response"]
