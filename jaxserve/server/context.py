"""What handlers and middlewares share: the engine client, the settings, metrics, admission."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector

import jaxserve
from jaxserve.config import ServerConfig
from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams
from jaxserve.server.admission import Admission
from jaxserve.server.api_keys import ApiKeys
from jaxserve.server.observability.engine_metrics import EngineMetrics
from jaxserve.server.observability.event_feed import EventFeed
from jaxserve.server.observability.http_metrics import HttpMetrics
from jaxserve.server.observability.request_metrics import RequestMetrics
from jaxserve.server.observability.tracing import Tracer
from jaxserve.server.observability.worker_stats import WorkerStats
from jaxserve.server.parsers import REASONING_PARSERS, TOOL_PARSERS, ThinkTagParser, ToolParser
from jaxserve.server.parsers.detection import (
    find_reasoning_parser,
    find_tool_parser,
    takes_system,
)
from jaxserve.server.response_store import ResponseStore
from jaxserve.server.wire.errors import ApiError
from jaxserve.server.wire.response_fields import new_id

if TYPE_CHECKING:
    from jaxserve.engine.frontend.client import EngineClient


# Arguments by which chat templates are told whether the model shall reason.
THINKING_ARGUMENTS = ("enable_thinking", "thinking")


@dataclass
class ServerContext:
    """The application's state, for one served model.

    Args:
        created: when the model was ready, in Unix seconds.
        worker_registry: metrics of this process alone, which are added up over API workers.
        engine_registry: metrics of the engine, which are the same in every API worker.
        workers: this server's other processes; None before they are known.
    """

    client: EngineClient
    config: ServerConfig
    keys: ApiKeys = field(default_factory=ApiKeys)
    admission: Admission = field(default_factory=Admission)
    created: int = field(default_factory=lambda: int(time.time()))
    http_metrics: HttpMetrics = field(default_factory=HttpMetrics)
    worker_registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    engine_registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    workers: WorkerStats | None = None
    tracer: Tracer | None = None
    events: EventFeed = field(init=False)
    responses: ResponseStore = field(init=False)

    def __post_init__(self) -> None:
        self.events = EventFeed(lambda: self.client)
        # Each API worker would have its own, and a request may come to any.
        alone = self.config.api_workers == 1
        self.responses = ResponseStore(self.config.max_stored_responses if alone else 0)

    def start_metrics(self, tracer: Tracer | None = None) -> None:
        """Registers the metrics of the process, of HTTP and of the engine for /metrics.

        Args:
            tracer: also gets a span for each request.
        """
        labels = {"model_name": self.model_names[0], "engine": "0"}
        prefix = self.config.metrics_prefix
        requests = RequestMetrics(self.client.max_model_len, prefix, labels)
        self.client.observers.append(requests)
        if tracer is not None:
            self.tracer = tracer
            tracer.model = self.model_names[0]
            self.client.observers.append(tracer)
        self.engine_registry.register(EngineMetrics(lambda: self.client, prefix, labels))
        for collector in (requests, self.http_metrics):
            self.worker_registry.register(collector)
        ProcessCollector(registry=self.worker_registry)

    def replace_client(self, client: EngineClient) -> None:
        """Uses a new engine process of the same model from now on; its metrics go on."""
        client.observers = self.client.observers
        for observer in client.observers:
            observer.on_stats(client.stats)
        self.client = client
        self.events.restart()

    @cached_property
    def model_names(self) -> tuple[str, ...]:
        """Names that requests may use; the first is the one that responses have."""
        return self.config.served_model_names or (self.client.model_name,)

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the same request may generate other tokens."""
        identity = f"{jaxserve.__version__}/{self.client.model_name}"
        return f"fp_{hashlib.sha256(identity.encode()).hexdigest()[:10]}"

    @cached_property
    def tool_parser(self) -> type[ToolParser] | None:
        """Parses tool calls in the model's format; None if the operator wants none."""
        if self.config.tool_call_parser != "auto":
            return TOOL_PARSERS.get(self.config.tool_call_parser)
        return self._parser_of_template or TOOL_PARSERS["generic"]

    @cached_property
    def explains_tools(self) -> bool:
        """Whether tools are explained in a message, because the chat template doesn't tell the
        model of them, or tells it to call them in a way that isn't known."""
        named = self.config.tool_call_parser
        if named != "auto":
            return named == "generic"
        return self._parser_of_template is None

    @cached_property
    def _parser_of_template(self) -> type[ToolParser] | None:
        tokenizer = self.client.tokenizer
        if not tokenizer.template_reads("tools"):
            return None
        found = find_tool_parser(tokenizer.apply_chat_template)
        mentions = tokenizer.template_mentions
        known = (p for p in TOOL_PARSERS.values() if p.needs_marker and mentions(p.markers[0]))
        return found or next(known, None)

    @cached_property
    def takes_system(self) -> bool:
        """Whether the chat template writes system messages."""
        return takes_system(self.client.tokenizer.apply_chat_template)

    @cached_property
    def reasoning_parser(self) -> type[ThinkTagParser] | None:
        """Parses the model's reasoning; None if the model isn't known to reason."""
        if self.config.reasoning_parser != "auto":
            return REASONING_PARSERS.get(self.config.reasoning_parser)
        return find_reasoning_parser(self.client.tokenizer.template_mentions)

    @cached_property
    def may_reason(self) -> bool:
        """Whether the model reasons though its prompt doesn't begin that: its chat template has a
        switch for it, or the operator says how it does."""
        reads = self.client.tokenizer.template_reads
        return self.config.reasoning_parser != "auto" or any(map(reads, THINKING_ARGUMENTS))

    def new_call_id(self) -> str:
        """An id for a tool call, in the form that the model's chat template accepts."""
        return (self.tool_parser or ToolParser).new_call_id()

    def adapter(self, model: str | None) -> str | None:
        """The adapter that a request's `model` names; None for the base model."""
        if model is None or model in self.model_names:
            return None
        return model if model in self.client.adapters else None

    def reported_model(self, model: str | None) -> str:
        """The name that the response to a request with this `model` has."""
        return self.adapter(model) or self.model_names[0]

    def response_header(self, id_prefix: str, model: str | None) -> dict[str, Any]:
        """The fields of ResponseHeader, but for `object`.

        Args:
            model: the request's.
        """
        return {
            "id": new_id(f"{id_prefix}-"),
            "created": int(time.time()),
            "model": self.reported_model(model),
            "system_fingerprint": self.fingerprint,
        }

    def check_limits(self, params: SamplingParams) -> SamplingParams:
        """Checks the params against the server's limits.

        Raises:
            InvalidRequestError: a value is above its limit.
        """
        config = self.config
        for name, value, limit in (
            ("n", params.n, config.max_choices),
            ("logprobs", params.logprobs or 0, config.max_logprobs),
            ("prompt_logprobs", params.prompt_logprobs or 0, config.max_logprobs),
            ("stop", len(params.stop), config.max_stop_strings),
            ("max_tokens", params.max_tokens or 0, config.max_output_tokens),
        ):
            if limit is not None and value > limit:
                raise InvalidRequestError(
                    f"{name}: this server allows at most {limit}; the request has {value}", name
                )
        return params

    def default_max_tokens(self, of_endpoint: int | None) -> int | None:
        """The limit of output tokens of requests without one; None is what the context leaves.

        Args:
            of_endpoint: the API's own default.
        """
        limits = (of_endpoint, self.config.max_output_tokens)
        return min((limit for limit in limits if limit is not None), default=None)

    def check_model(self, name: str | None) -> None:
        if name is not None and name not in self.model_names and self.adapter(name) is None:
            names = [*self.model_names, *self.client.adapters]
            known = ", ".join(names[:20]) + (" and others" if len(names) > 20 else "")
            raise ApiError(
                404,
                f"The model {name!r} does not exist; this server has {known}",
                param="model",
                code="model_not_found",
            )


SERVER_CONTEXT: web.AppKey[ServerContext] = web.AppKey("server_context", ServerContext)
