"""From settings to a listening server, and back to an empty process table."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from jaxserve.config import EngineConfig, ServerConfig
from jaxserve.engine.frontend.client import EngineClient
from jaxserve.errors import ConfigError, EngineDeadError
from jaxserve.server.admission import Admission
from jaxserve.server.app import create_app
from jaxserve.server.context import SERVING, Serving
from jaxserve.server.keys import Keys
from jaxserve.server.observability.tracing import Tracer
from jaxserve.server.observability.worker_stats import WorkerStats
from jaxserve.server.processes.api_processes import DEAD, STOP, ApiProcesses
from jaxserve.server.processes.tls import tls_context
from jaxserve.server.wire.errors import BadHttpFilter

logger = logging.getLogger(__name__)

# Enough to write out what the handlers have ready once the engine is closed.
FLUSH_SECONDS = 2.0
# For which a server whose engine has died goes on to answer 503: a probe, or a balancer, hears of
# the death, and a client of when to come back, rather than find nobody there.
NOTICE_SECONDS = 1.0
BACKLOG = 1024
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """What SIGINT and SIGTERM ask for: once to stop in order, twice to stop at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.urgent = asyncio.Event()

    def signal(self) -> None:
        (self.urgent if self.asked.is_set() else self.asked).set()


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """Who is let in, and where: checked before a model is loaded."""

    config: ServerConfig
    keys: Keys
    tls: ssl.SSLContext | None
    template: str | None
    tracer: Tracer | None

    @classmethod
    def of(cls, config: ServerConfig) -> ServerSetup:
        """Raises ConfigError: a key, a certificate or the chat template can't be read, or
        OpenTelemetry is asked for and not installed."""
        _allow_many_connections()
        logging.getLogger("aiohttp.server").addFilter(BadHttpFilter())
        keys, tls = Keys.load(config), tls_context(config)
        template = _read_template(config.chat_template)
        endpoint = config.otlp_traces_endpoint
        return cls(config, keys, tls, template, None if endpoint is None else Tracer(endpoint))

    def use_template(self, client: EngineClient) -> EngineClient:
        """The client, with the chat template of the settings."""
        if self.template is not None:
            client.tokenizer.use_chat_template(self.template)
        return client

    @asynccontextmanager
    async def open(
        self, client: EngineClient, sock: socket.socket, peers: WorkerStats, created: int
    ) -> AsyncIterator[tuple[Serving, web.BaseSite]]:
        """Listens; afterwards closes the client and all connections.

        Args:
            created: when the model was ready, in Unix seconds.

        Raises:
            ConfigError: it can't listen.
        """
        app = create_app(client, self.config, self.keys)
        serving = app[SERVING]
        serving.peers, serving.created = peers, created
        serving.watch(self.tracer)
        # Vocabularies are hundreds of thousands of objects that stay: looking through them all for
        # garbage would stop every stream for as long.
        gc.collect()
        gc.freeze()
        async with (
            peers.answering(serving.admission, serving.counts),
            _listening(app, sock, self.tls) as site,
        ):
            yield serving, site
        if self.tracer is not None:
            await asyncio.to_thread(self.tracer.close)


async def serve(
    engine: EngineConfig, config: ServerConfig, announce: Callable[[str, str, float], None]
) -> None:
    """Serves until a signal, then lets running requests finish within `config.drain_timeout`.

    Args:
        announce: called once the server is ready, with its URL, the model's name and the seconds
            it took.

    Raises:
        ConfigError: as ServerSetup.of(), or the address can't be bound.
        EngineDeadError: the engine process died, or another server process.
    """
    begin = time.monotonic()
    doors = ServerSetup.of(config)
    # Bound first: a port in use shows before the model is loaded. Connections are refused until
    # it listens.
    with bound_socket(config) as sock, _stop_on_signals() as stop:
        client = await _start(engine, doors, stop)
        if client is None:
            return
        peers, created = WorkerStats(client.folder, 0, config.api_workers), int(time.time())
        port = sock.getsockname()[1]
        async with (
            doors.open(client, sock, peers, created) as (serving, site),
            ApiProcesses.of(client, config, port, created, stop.asked) as crew,
        ):
            announce(_url(sock, doors.tls), serving.names[0], time.monotonic() - begin)
            for left in reversed(range(config.engine_restarts)):
                await _any(serving.client.wait_dead(), stop.asked.wait())
                if stop.asked.is_set():
                    break
                logger.error("the engine process died; it is restarted, and may be %d times", left)
                await serving.client.close()
                if (fresh := await _start(engine, doors, stop)) is not None:
                    serving.replace_client(fresh)
            failure = await until_stopped(serving, site, stop, crew)
        if failure is not None:
            raise EngineDeadError(failure)


async def _start(engine: EngineConfig, doors: ServerSetup, stop: Stop) -> EngineClient | None:
    """A ready engine; None if a stop was asked for meanwhile."""
    starting = asyncio.create_task(EngineClient.start(engine))
    await _any(starting, stop.asked.wait())
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        return None
    return doors.use_template(starting.result())


async def until_stopped(
    serving: Serving, site: web.BaseSite, stop: Stop, crew: ApiProcesses | None = None
) -> str | None:
    """Waits for a stop, then for running requests; returns what happened instead, if anything did.

    Args:
        crew: the other server processes, if this is the first of them.
    """
    crew = crew or ApiProcesses()
    in_restart = stop.asked.is_set() and not serving.client.healthy
    dead = asyncio.create_task(_wait_dead(serving.client, crew))
    lost = asyncio.create_task(crew.wait_one())
    detaching = asyncio.create_task(crew.detach_ended(serving.client))
    try:
        await _any(dead, lost, stop.asked.wait())
        failure = None if stop.asked.is_set() else "a server process died"
        serving.admission.close()
        crew.tell(STOP)
        if dead.done() and not in_restart:
            await _any(stop.urgent.wait(), timeout=NOTICE_SECONDS)
        await site.stop()
        if not dead.done():
            logger.info("stopping; %d requests in flight", serving.admission.in_flight)
            idle = _wait_idle(serving.admission, crew)
            await _any(dead, idle, stop.urgent.wait(), timeout=serving.config.drain_timeout)
        if dead.done() and not in_restart:
            failure = "the engine process died; its own messages are above"
        return failure
    finally:
        for task in (dead, lost, detaching):
            task.cancel()


async def _wait_dead(client: EngineClient, crew: ApiProcesses) -> None:
    await client.wait_dead()
    crew.tell(f"{DEAD} {client.exit_status}")


async def _wait_idle(admission: Admission, crew: ApiProcesses) -> None:
    await admission.wait_idle()
    await crew.wait_all()


@asynccontextmanager
async def _listening(
    app: web.Application, sock: socket.socket, tls: ssl.SSLContext | None
) -> AsyncIterator[web.BaseSite]:
    runner = web.AppRunner(
        app, handler_cancellation=True, shutdown_timeout=FLUSH_SECONDS, access_log=None
    )
    try:
        await runner.setup()
        site = web.SockSite(runner, sock, backlog=BACKLOG, ssl_context=tls)
        try:
            await site.start()
        except OSError as error:
            raise ConfigError(f"can't listen on {_url(sock, tls)}: {error.strerror}") from None
        yield site
    finally:
        # Closing the engine fails whatever still runs; the cleanup sends those errors out.
        await app[SERVING].client.close()
        await runner.cleanup()


def _allow_many_connections() -> None:
    """As many as the administrator lets it have: the usual soft limit of 1,024 files is little for
    streams, and clients that hold connections open idly would soon lock all others out."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # macOS has a limit of its own below the one it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _read_template(file: str | None) -> str | None:
    try:
        return None if file is None else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the chat template {file} can't be read: {error}") from None


def bound_socket(config: ServerConfig, shared: int | None = None) -> socket.socket:
    """Where the server will listen.

    Args:
        shared: the port that another process of this server listens on.

    Raises:
        ConfigError: the address can't be bound.
    """
    port = config.port if shared is None else shared
    if shared is None and port and config.api_workers > 1:
        # Alone at first: among sockets that share a port, one in use wouldn't show.
        _bind(config.host, port, share=False).close()
    return _bind(config.host, port, share=config.api_workers > 1)


def _bind(host: str, port: int, share: bool) -> socket.socket:
    address = f"{host}:{port}"
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"can't listen on {address}: {error.strerror}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(where)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"can't listen on {address}: {error.strerror}; choose another --port or --host"
        ) from None
    return sock


def _url(sock: socket.socket, tls: ssl.SSLContext | None) -> str:
    scheme = "http" if tls is None else "https"
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@contextmanager
def _stop_on_signals() -> Iterator[Stop]:
    stop, loop = Stop(), asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.signal)
    try:
        yield stop
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def _any(*awaitables: Awaitable[Any], timeout: float | None = None) -> None:
    """Returns when one of them has ended, or after `timeout` seconds. Leaves given tasks alone."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, awaitable in zip(tasks, awaitables, strict=True):
            if task is not awaitable:
                task.cancel()
