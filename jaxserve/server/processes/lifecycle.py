"""The life of a server: from settings to a ready server, engine restarts, and the end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from jaxserve.config import EngineConfig, ServerConfig
from jaxserve.engine.frontend.client import EngineClient
from jaxserve.errors import EngineDeadError
from jaxserve.server.context import ServerContext
from jaxserve.server.observability.worker_stats import WorkerStats
from jaxserve.server.processes.api_processes import ApiProcesses
from jaxserve.server.processes.listening_socket import (
    bound_socket,
    removed_at_end,
    url_of,
)
from jaxserve.server.processes.server_setup import ServerSetup
from jaxserve.server.processes.shutdown import (
    StopRequest,
    serve_until_stopped,
    stop_on_signals,
    wait_first,
)

logger = logging.getLogger(__name__)


async def serve(
    engine: EngineConfig, config: ServerConfig, announce: Callable[[str, str, float], None]
) -> None:
    """Serves until a signal, then lets running requests finish within `config.drain_timeout`.

    Args:
        announce: called once the server is ready, with its URL, the model's name and the seconds
            since the start.

    Raises:
        ConfigError: as in ServerSetup.of(), or the address can't be bound.
        EngineDeadError: the engine process died, or another server process.
    """
    begin = time.monotonic()
    setup = ServerSetup.of(config)
    # Bound before the model loads, so that a port in use is reported immediately. Connections are
    # refused until the socket listens.
    with bound_socket(config) as sock, removed_at_end(config.uds), stop_on_signals() as stop:
        client = await _start_engine(engine, setup, stop)
        if client is None:
            return
        workers, created = WorkerStats(client.folder, 0, config.api_workers), int(time.time())
        port = 0 if config.uds else sock.getsockname()[1]
        async with (
            setup.listen(client, sock, workers, created) as (context, site),
            ApiProcesses.start(client, config, port, created, stop.requested) as processes,
        ):
            announce(url_of(sock, setup.tls), context.model_names[0], time.monotonic() - begin)
            await _restart_engine(engine, setup, context, stop)
            failure = await serve_until_stopped(context, site, stop, processes)
        if failure is not None:
            raise EngineDeadError(failure)


async def _start_engine(
    engine: EngineConfig, setup: ServerSetup, stop: StopRequest
) -> EngineClient | None:
    """A ready engine; None if a stop was requested meanwhile."""
    starting = asyncio.create_task(EngineClient.start(engine))
    await wait_first(starting, stop.requested.wait())
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        return None
    client = starting.result()
    setup.set_chat_template(client)
    return client


async def _restart_engine(
    engine: EngineConfig, setup: ServerSetup, context: ServerContext, stop: StopRequest
) -> None:
    """Starts a new engine process whenever one has died; returns after a stop request, or when no
    further restart is allowed."""
    for left in reversed(range(setup.config.engine_restarts)):
        await wait_first(context.client.wait_dead(), stop.requested.wait())
        if stop.requested.is_set():
            return
        logger.error("the engine process died and is restarted; restarts left: %d", left)
        await context.client.close()
        if (client := await _start_engine(engine, setup, stop)) is not None:
            context.replace_client(client)
