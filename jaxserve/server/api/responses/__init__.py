"""POST /v1/responses: OpenAI's newer API, without its storage."""

from __future__ import annotations

from jaxserve.server.api.responses.handler import create_response
from jaxserve.server.api.responses.request import UNSUPPORTED, ResponsesRequest
from jaxserve.server.api.responses.wire import Response

__all__ = ["UNSUPPORTED", "Response", "ResponsesRequest", "create_response"]
