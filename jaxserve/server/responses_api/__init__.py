"""POST /v1/responses: OpenAI's newer API, without its storage."""

from __future__ import annotations

from jaxserve.server.responses_api.handler import create_response
from jaxserve.server.responses_api.request import UNSUPPORTED, ResponsesRequest
from jaxserve.server.responses_api.wire import Response

__all__ = ["UNSUPPORTED", "Response", "ResponsesRequest", "create_response"]
