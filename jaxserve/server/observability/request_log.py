"""A record of each HTTP request: its id, its times and its tokens, for the log and the metrics."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aiohttp import web

from jaxserve.server.context import SERVING
from jaxserve.server.wire.errors import Handler

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from jaxserve.server.api.generation import TokenCount
    from jaxserve.server.observability.tracing import Tracer

CLIENT_LEFT = 499  # nginx's status for a request whose client didn't wait
ID_HEADER = "X-Request-Id"
UNROUTED = "none"

access_log = logging.getLogger("jaxserve.access")
_GOOD_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request.

    Args:
        id: the client's own X-Request-Id if it is a good one.
        key_salt: of the API key, if each key's cached text is its own.
        tokens: counted while it generates.
        body: what was sent, if prompts are logged.
    """

    id: str
    began: float = field(default_factory=time.monotonic)
    key_salt: str | None = None
    tokens: TokenCount | None = None
    body: Any = None

    @classmethod
    def of(cls, request: web.Request) -> RequestRecord:
        given = request.headers.get(ID_HEADER, "")
        return cls(given if _GOOD_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}")

    def salt(self, own: str | None = None) -> str | None:
        """Whose cached text the request may share.

        Args:
            own: the salt that the request itself brought.
        """
        return own if self.key_salt is None else f"{self.key_salt}/{own or ''}"


RECORD: web.RequestKey[RequestRecord] = web.RequestKey("record", RequestRecord)
_current: ContextVar[RequestRecord | None] = ContextVar("jaxserve_request", default=None)


def current() -> RequestRecord:
    """The record of the HTTP request that this task serves; outside of one, a blank."""
    return _current.get() or RequestRecord("none")


@contextmanager
def recorded(request: web.Request) -> Iterator[RequestRecord]:
    """Makes a request's record, and its tasks' current one."""
    request[RECORD] = record = RequestRecord.of(request)
    token = _current.set(record)
    try:
        yield record
    finally:
        _current.reset(token)


@web.middleware
async def record_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The outermost: counts and logs each request with the status that its client saw."""
    serving = request.app[SERVING]
    status = CLIENT_LEFT
    with recorded(request) as record, _traced(serving.tracer, request, record) as span:
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            if span is not None:
                span.set_attribute("http.response.status_code", status)
            seconds = time.monotonic() - record.began
            serving.http.observe(_route(request), request.method, status, seconds)
            if serving.config.access_log:
                _log(request, record, status, seconds)


def _traced(
    tracer: Tracer | None, request: web.Request, record: RequestRecord
) -> AbstractContextManager[Span | None]:
    if tracer is None:
        return nullcontext()
    return tracer.request(request, record.id, _route(request))


async def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """On each response's headers, streams and errors included."""
    if RECORD in request:
        response.headers[ID_HEADER] = request[RECORD].id


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return UNROUTED if resource is None else resource.canonical


def _log(request: web.Request, record: RequestRecord, status: int, seconds: float) -> None:
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "method": request.method,
        "path": request.path,
        "status": status,
        "ms": round(seconds * 1000, 1),
        "request_id": record.id,
        "remote": request.remote,
    }
    if record.tokens is not None:
        line |= {
            "prompt_tokens": record.tokens.prompt,
            "completion_tokens": record.tokens.completion,
            "cached_tokens": record.tokens.cached,
        }
    if record.body is not None:
        line["body"] = record.body
    access_log.info(json.dumps(line))


def log_to_stderr() -> None:
    """A server process's logs; the access log's lines are bare, so that each is one JSON object."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    access_log.handlers = [handler]
    access_log.propagate = False
    access_log.setLevel(logging.INFO)
