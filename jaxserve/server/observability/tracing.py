"""OpenTelemetry traces: a span for each HTTP request, and within it one for the engine's part.

The extra `otel` installs the packages that this needs. Attributes have vLLM's names.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aiohttp import web

from jaxserve.engine.frontend.request_observer import EndReason, RequestObserver, RequestTimes
from jaxserve.errors import ConfigError
from jaxserve.server.observability.request_log import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

EXPORT_SECONDS = 2.0  # how long a collector that doesn't answer may delay the server's end


class Tracer(RequestObserver):
    """Sends spans to a collector over HTTP.

    Args:
        endpoint: the collector's URL; /v1/traces is added if it has no path.

    Raises:
        ConfigError: opentelemetry isn't installed.
    """

    def __init__(self, endpoint: str) -> None:
        try:
            from opentelemetry import propagate, trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise ConfigError(
                "otlp_traces_endpoint needs OpenTelemetry: pip install 'jaxserve[otel]'"
            ) from None
        if urlsplit(endpoint).path in ("", "/"):
            endpoint = f"{endpoint.rstrip('/')}/v1/traces"
        self._trace, self._extract = trace, propagate.extract
        self._provider = TracerProvider(resource=Resource.create({"service.name": "jaxserve"}))
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("jaxserve")
        self.model: str | None = None  # the name that clients use
        self._open: dict[str, Context] = {}  # of HTTP requests in flight, by their id

    @contextmanager
    def request(self, request: web.Request, record: RequestRecord, route: str) -> Iterator[Span]:
        """The span of an HTTP request, in the trace that its headers name, or in a new one."""
        parent = self._extract(request.headers)
        kind = self._trace.SpanKind.SERVER
        name = f"{request.method} {route}"
        with self._tracer.start_as_current_span(name, parent, kind) as span:
            span.set_attribute("http.request.method", request.method)
            span.set_attribute("http.route", route)
            span.set_attribute("gen_ai.request.id", record.id)
            self._open[record.id] = self._trace.set_span_in_context(span)
            try:
                yield span
            finally:
                self._open.pop(record.id, None)

    def rename(self, before: str, request_id: str) -> None:
        """The HTTP request that this task serves has got another id."""
        span = self._trace.get_current_span()
        span.set_attribute("gen_ai.request.id", request_id)
        self._open.pop(before, None)
        self._open[request_id] = self._trace.set_span_in_context(span)

    def on_choice_end(self, times: RequestTimes, index: int, reason: EndReason) -> None:
        """Sends a request's span once its last choice has ended."""
        if times.ended < times.params.n:
            return
        seconds = time.monotonic() - times.arrived
        now = time.time_ns()
        span = self._tracer.start_span(
            "llm_request",
            self._open.get(times.request_id or ""),
            start_time=now - int(seconds * 1e9),
            attributes={k: v for k, v in self._attributes(times, seconds).items() if v is not None},
        )
        span.set_attribute("gen_ai.response.finish_reason", reason)
        span.end(now)

    def _attributes(self, times: RequestTimes, seconds: float) -> dict[str, Any]:
        firsts = [choice.first for choice in times.choices.values()]
        return {
            "gen_ai.response.model": self.model,
            "gen_ai.request.id": times.request_id,
            "gen_ai.request.n": times.params.n,
            "gen_ai.request.temperature": times.params.temperature,
            "gen_ai.request.top_p": times.params.top_p,
            "gen_ai.request.max_tokens": times.params.max_tokens,
            "gen_ai.usage.prompt_tokens": times.prompt_tokens,
            "gen_ai.usage.completion_tokens": sum(c.tokens for c in times.choices.values()),
            "gen_ai.latency.time_in_queue": times.queue_s,
            "gen_ai.latency.time_to_first_token": min(firsts) - times.arrived if firsts else None,
            "gen_ai.latency.e2e": seconds,
        }

    def close(self) -> None:
        """Sends remaining spans; may wait for the collector."""
        self._provider.shutdown()
