"""What every handler needs, in one place."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector

import jaxserve
from jaxserve.config import ServerConfig
from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams
from jaxserve.server.admission import Admission
from jaxserve.server.keys import Keys
from jaxserve.server.observability.metrics import EngineMetrics, EngineReadings, HttpMetrics
from jaxserve.server.observability.tracing import Tracer
from jaxserve.server.observability.worker_stats import WorkerStats
from jaxserve.server.parsers import REASONING_PARSERS, TOOL_PARSERS, Think, ToolParser
from jaxserve.server.wire.answers import new_id
from jaxserve.server.wire.errors import ApiError

if TYPE_CHECKING:
    from jaxserve.engine.frontend.client import EngineClient


@dataclass
class Serving:
    """One served model; `created` is when it was ready, in Unix seconds."""

    client: EngineClient
    config: ServerConfig
    keys: Keys = field(default_factory=Keys)
    admission: Admission = field(default_factory=Admission)
    created: int = field(default_factory=lambda: int(time.time()))
    http: HttpMetrics = field(default_factory=HttpMetrics)
    counts: CollectorRegistry = field(default_factory=CollectorRegistry)  # of this process
    engine: CollectorRegistry = field(default_factory=CollectorRegistry)
    peers: WorkerStats | None = None
    tracer: Tracer | None = None

    def watch(self, tracer: Tracer | None = None) -> None:
        """Begins to keep figures of the process, of HTTP and of the engine, for /metrics, and to
        send traces if there is somebody to take them."""
        labels = {"model_name": self.names[0], "engine": "0"}
        metrics = EngineMetrics(self.client, self.config.metrics_prefix, labels)
        self.client.listeners.append(metrics)
        if tracer is not None:
            self.tracer = tracer
            tracer.model = self.names[0]
            self.client.listeners.append(tracer)
        prefix = self.config.metrics_prefix
        self.engine.register(EngineReadings(lambda: self.client, prefix, labels))
        for collector in (metrics, self.http):
            self.counts.register(collector)
        ProcessCollector(registry=self.counts)

    def replace_client(self, client: EngineClient) -> None:
        """Goes on with a new engine process of the same model."""
        client.listeners = self.client.listeners
        for listener in client.listeners:
            listener.on_turn(client.stats)
        self.client = client

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names that requests may use; the first is the one reported."""
        return self.config.served_model_names or (self.client.model_name,)

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the same request may give other tokens."""
        identity = f"{jaxserve.__version__}/{self.client.model_name}"
        return f"fp_{hashlib.sha256(identity.encode()).hexdigest()[:10]}"

    @cached_property
    def tool_parser(self) -> type[ToolParser] | None:
        """Reads the model's calls of tools; None if it isn't known to make any."""
        if self.config.tool_call_parser != "auto":
            return TOOL_PARSERS.get(self.config.tool_call_parser)
        mentions = self.client.tokenizer.template_mentions
        return next((p for p in TOOL_PARSERS.values() if mentions(p.markers[0])), None)

    @cached_property
    def reasoning_parser(self) -> type[Think] | None:
        """Reads the model's reasoning; None if it isn't known to reason."""
        if self.config.reasoning_parser != "auto":
            return REASONING_PARSERS.get(self.config.reasoning_parser)
        return Think if self.client.tokenizer.template_mentions(Think.markers[1]) else None

    def new_call_id(self) -> str:
        """An id for a call of a tool, as the model's template wants it."""
        return (self.tool_parser or ToolParser).new_call_id()

    def header(self, id_prefix: str) -> dict[str, Any]:
        """The fields that an answer, or each chunk of a streamed one, begins with."""
        return {
            "id": new_id(id_prefix),
            "created": int(time.time()),
            "model": self.names[0],
            "system_fingerprint": self.fingerprint,
        }

    def check_limits(self, params: SamplingParams) -> SamplingParams:
        """The params, with max_tokens filled in where this server limits it.

        Raises:
            InvalidRequestError: they ask for more than this server gives in one request.
        """
        config = self.config
        for name, asked, most in (
            ("n", params.n, config.max_choices),
            ("logprobs", params.logprobs or 0, config.max_logprobs),
            ("prompt_logprobs", params.prompt_logprobs or 0, config.max_logprobs),
            ("stop", len(params.stop), config.max_stop_strings),
            ("max_tokens", params.max_tokens or 0, config.max_output_tokens),
        ):
            if most is not None and asked > most:
                raise InvalidRequestError(
                    f"{name}: this server takes at most {most}; the request had {asked}", name
                )
        if params.max_tokens is None and config.max_output_tokens is not None:
            return replace(params, max_tokens=config.max_output_tokens)
        return params

    def check_model(self, name: str) -> None:
        if name not in self.names:
            raise ApiError(
                404,
                f"The model {name!r} does not exist; this server has {', '.join(self.names)}",
                param="model",
                code="model_not_found",
            )


SERVING: web.AppKey[Serving] = web.AppKey("serving", Serving)
