"""Records every request: access log, HTTP metrics, trace span, X-Request-Id, X-Ignored-Fields."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from aiohttp import web

from jaxserve.server.context import SERVER_CONTEXT
from jaxserve.server.middleware.errors import Handler, is_anthropic
from jaxserve.server.observability.request_log import (
    ID_HEADER,
    IGNORED_HEADER,
    RECORD,
    RequestRecord,
    recorded,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from jaxserve.server.observability.tracing import Tracer

CLIENT_DISCONNECTED = 499  # nginx's status for a client that disconnected before the response
UNKNOWN_ROUTE = "none"


@web.middleware
async def request_logging_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The outermost middleware: it sees the status that the client gets. A stream that
    ends with an error counts with the error's status."""
    context = request.app[SERVER_CONTEXT]
    status = CLIENT_DISCONNECTED
    strict = context.config.strict_fields
    with (
        recorded(request, strict) as record,
        _traced(context.tracer, request, record) as span,
    ):
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            status = record.stream_error or status
            if span is not None:
                span.set_attribute("http.response.status_code", status)
            seconds = time.monotonic() - record.began
            context.http_metrics.observe(_route(request), request.method, status, seconds)
            if context.config.access_log:
                record.log(request, status, seconds)


def _traced(
    tracer: Tracer | None, request: web.Request, record: RequestRecord
) -> AbstractContextManager[Span | None]:
    if tracer is None:
        return nullcontext()
    return tracer.request(request, record, _route(request))


async def add_request_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Adds the request's id and the names of its ignored fields to every response, streams and
    errors included."""
    if RECORD in request:
        record = request[RECORD]
        response.headers[ID_HEADER] = record.id
        if record.ignored:
            response.headers[IGNORED_HEADER] = record.ignored_header
        if is_anthropic(request.path):
            response.headers["request-id"] = request[RECORD].id


def _route(request: web.Request) -> str:
    """The route's pattern, so that metrics have few labels."""
    resource = request.match_info.route.resource
    return UNKNOWN_ROUTE if resource is None else resource.canonical
