"""Settings validated before the model loads, and the listening server made from them."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from jaxserve.config import ServerConfig
from jaxserve.engine.frontend.client import EngineClient
from jaxserve.errors import ConfigError
from jaxserve.server.api_keys import ApiKeys
from jaxserve.server.app import create_app
from jaxserve.server.context import SERVER_CONTEXT, ServerContext
from jaxserve.server.observability.tracing import Tracer
from jaxserve.server.observability.worker_stats import WorkerStats
from jaxserve.server.processes.connection import ConnectionRunner
from jaxserve.server.processes.listening_socket import url_of
from jaxserve.server.processes.tls import tls_context
from jaxserve.server.wire.errors import BadHttpFilter

# After the engine is closed, for sending the responses that handlers still write.
FLUSH_SECONDS = 2.0
BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """What a server needs besides the engine."""

    config: ServerConfig
    keys: ApiKeys
    tls: ssl.SSLContext | None
    chat_template: str | None
    tracer: Tracer | None

    @classmethod
    def of(cls, config: ServerConfig) -> ServerSetup:
        """Reads the files that the settings name.

        Raises:
            ConfigError: a key, a certificate or the chat template can't be read, or OpenTelemetry
                is needed and not installed.
        """
        _raise_file_limit()
        logging.getLogger("aiohttp.server").addFilter(BadHttpFilter())
        keys, tls = ApiKeys.load(config), tls_context(config)
        template = _read_template(config.chat_template)
        endpoint = config.otlp_traces_endpoint
        return cls(config, keys, tls, template, None if endpoint is None else Tracer(endpoint))

    def set_chat_template(self, client: EngineClient) -> None:
        """Gives a client the chat template of the settings, if there is one."""
        if self.chat_template is not None:
            client.tokenizer.use_chat_template(self.chat_template)

    @asynccontextmanager
    async def listen(
        self, client: EngineClient, sock: socket.socket, workers: WorkerStats, created: int
    ) -> AsyncIterator[tuple[ServerContext, web.BaseSite]]:
        """Serves on a bound socket. At the end closes the client and all connections.

        Args:
            created: when the model was ready, in Unix seconds.

        Raises:
            ConfigError: listening fails.
        """
        app = create_app(client, self.config, self.keys)
        context = app[SERVER_CONTEXT]
        context.workers, context.created = workers, created
        context.start_metrics(self.tracer)
        # Vocabularies are hundreds of thousands of objects that are never freed. Unless they are
        # frozen, each full garbage collection visits them all, and every stream waits meanwhile.
        gc.collect()
        gc.freeze()
        async with (
            workers.serve_own(context.admission, context.worker_registry),
            _listening(app, sock, self.tls) as site,
        ):
            yield context, site
        if self.tracer is not None:
            await asyncio.to_thread(self.tracer.close)


@asynccontextmanager
async def _listening(
    app: web.Application, sock: socket.socket, tls: ssl.SSLContext | None
) -> AsyncIterator[web.BaseSite]:
    runner = ConnectionRunner(app, handler_cancellation=True, shutdown_timeout=FLUSH_SECONDS)
    try:
        await runner.setup()
        site = web.SockSite(runner, sock, backlog=BACKLOG, ssl_context=tls)
        try:
            await site.start()
        except OSError as error:
            raise ConfigError(f"can't listen on {url_of(sock, tls)}: {error.strerror}") from None
        yield site
    finally:
        # Closing the engine fails all requests that still run. The cleanup waits until those
        # errors are sent.
        await app[SERVER_CONTEXT].client.close()
        await runner.cleanup()


def _raise_file_limit() -> None:
    """Raises the limit of open files to the hard limit: with the usual soft limit of 1,024, idle
    connections would soon keep all others out."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # macOS refuses the hard limit that it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _read_template(file: str | None) -> str | None:
    try:
        return None if file is None else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the chat template {file} can't be read: {error}") from None
