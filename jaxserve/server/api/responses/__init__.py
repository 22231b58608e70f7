"""POST /v1/responses: OpenAI's newer API. Responses are not stored."""

from __future__ import annotations

from jaxserve.server.api.responses.handler import create_response

__all__ = ["create_response"]
