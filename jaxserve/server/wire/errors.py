"""HTTP errors in OpenAI's form: {"error": {message, type, param, code}}."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from jaxserve.errors import (
    EngineDeadError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
    ShuttingDownError,
    UnprocessableError,
)

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 1
# Characters of an error that quotes what the client has sent.
MAX_MESSAGE, MAX_PARAM = 1000, 200


@dataclass(eq=False)
class ApiError(Exception):
    """A failure as the client sees it.

    Args:
        type: OpenAI's class of error, such as invalid_request_error.
        param: the request's field at fault.
        code: what programs can test, such as model_not_found.
    """

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.message = _cut(self.message, MAX_MESSAGE)
        self.param = self.param and _cut(self.param, MAX_PARAM)

    def envelope(self) -> dict[str, Any]:
        """The body of the response."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self, body: dict[str, Any] | None = None) -> web.Response:
        """Args: body: in place of the envelope."""
        return web.Response(
            status=self.status,
            body=msgspec.json.encode(body or self.envelope()),
            content_type="application/json",
            headers=self.headers,
        )


def _cut(text: str, most: int) -> str:
    """A text of at most `most` characters. The middle of a longer one is left out, because messages
    begin with what is wrong and end with what to do."""
    kept = most // 2 - 3
    return text if len(text) <= most else f"{text[:kept]} ... {text[-kept:]}"


def as_api_error(error: Exception) -> ApiError:
    """The ApiError for any exception. An unexpected one is logged with an id; the client gets the
    id and no detail."""
    match error:
        case ApiError():
            return error
        case InvalidRequestError():
            return ApiError(400, str(error), param=error.param, code=error.code)
        case UnprocessableError():
            return ApiError(422, str(error), code="unprocessable")
        case OverloadedError():
            return ApiError(
                429,
                str(error),
                type="rate_limit_error",
                code="overloaded",
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        case RecursionError():  # the body could be decoded, and is too deep for later steps
            return ApiError(400, "the body is nested too deeply", code="invalid_json")
        case EngineDeadError():
            return unavailable(str(error), "engine_dead")
        case ShuttingDownError():
            return unavailable(str(error), "shutting_down")
        case web.HTTPException():
            return _from_http_exception(error)
    error_id = f"err-{uuid.uuid4().hex[:12]}"
    if isinstance(error, EngineError):
        logger.error("%s: the engine failed a request: %s", error_id, error)
        message = f"the engine failed this request: {error} (id {error_id})"
    else:
        logger.error("%s: unexpected error", error_id, exc_info=error)
        message = f"internal error; the server's log has the details under id {error_id}"
    return ApiError(500, message, type="server_error", code="internal_error")


def unavailable(message: str, code: str) -> ApiError:
    return ApiError(
        503,
        message,
        type="server_error",
        code=code,
        headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
    )


def _from_http_exception(error: web.HTTPException) -> ApiError:
    match error:
        case web.HTTPNotFound():
            return ApiError(404, "no such path; see /v1/models", code="unknown_url")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            return ApiError(
                405,
                f"{error.method} isn't allowed here; use {allowed}",
                code="method_not_allowed",
                headers={"Allow": allowed},
            )
        case web.HTTPRequestEntityTooLarge():
            return ApiError(413, f"the request is too large: {error.text}", code="too_large")
    return ApiError(error.status, error.reason)


class BadHttpFilter(logging.Filter):
    """Drops aiohttp's log entries, each with a traceback, about bytes that aren't valid HTTP."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
