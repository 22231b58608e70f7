"""POST /v1/responses: OpenAI's newer API. They are stored in memory, if at all."""

from __future__ import annotations

from jaxserve.server.api.responses.handler import create_response
from jaxserve.server.api.responses.stored import (
    DeletedResponse,
    delete_response,
    get_response,
)

__all__ = ["DeletedResponse", "create_response", "delete_response", "get_response"]
