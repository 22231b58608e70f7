"""Stopping a server process: running requests finish within a limit, then it ends."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from jaxserve.engine.frontend.client import EngineClient
from jaxserve.server.admission import Admission
from jaxserve.server.context import ServerContext
from jaxserve.server.processes.api_processes import ENGINE_DEAD, STOP, ApiProcesses

logger = logging.getLogger(__name__)

# After its engine has died, a server answers 503 for this long before it ends, so that load
# balancers learn of it by a probe, and clients get a Retry-After instead of a refused connection.
DEAD_ENGINE_NOTICE_S = 1.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Set by SIGINT and SIGTERM: the first asks for a stop after running requests have finished,
    the second for an immediate stop."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.immediate = asyncio.Event()

    def signal(self) -> None:
        (self.immediate if self.requested.is_set() else self.requested).set()


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Sets the StopRequest on signals while the context is open."""
    stop, loop = StopRequest(), asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.signal)
    try:
        yield stop
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def serve_until_stopped(
    context: ServerContext,
    site: web.BaseSite,
    stop: StopRequest,
    processes: ApiProcesses | None = None,
) -> str | None:
    """Waits for a stop, then for running requests, at most `drain_timeout` seconds.

    Args:
        processes: the other server processes, if this is the first one.

    Returns:
        Why the server ended by itself; None after a stop that was asked for.
    """
    processes = processes or ApiProcesses()
    in_restart = stop.requested.is_set() and not context.client.healthy
    engine_dead = asyncio.create_task(_wait_engine_dead(context.client, processes))
    process_ended = asyncio.create_task(processes.wait_any_ended())
    detaching = asyncio.create_task(processes.detach_ended(context.client))
    try:
        await wait_first(engine_dead, process_ended, stop.requested.wait())
        failure = None if stop.requested.is_set() else "a server process died"
        context.admission.close()
        context.events.close()
        processes.send(STOP)
        if engine_dead.done() and not in_restart:
            await wait_first(stop.immediate.wait(), timeout=DEAD_ENGINE_NOTICE_S)
        if not engine_dead.done():
            logger.info("stopping; %d requests in flight", context.admission.in_flight)
            idle = _wait_idle(context.admission, processes)
            await wait_first(
                engine_dead, idle, stop.immediate.wait(), timeout=context.config.drain_timeout
            )
        if engine_dead.done() and not in_restart:
            failure = "the engine process died; its own messages are above"
        # Last: while running requests finish, new connections get a 503 that says when to retry.
        await site.stop()
        return failure
    finally:
        for task in (engine_dead, process_ended, detaching):
            task.cancel()


async def _wait_engine_dead(client: EngineClient, processes: ApiProcesses) -> None:
    await client.wait_dead()
    processes.send(f"{ENGINE_DEAD} {client.exit_status}")


async def _wait_idle(admission: Admission, processes: ApiProcesses) -> None:
    await admission.wait_idle()
    await processes.wait_all_ended()


async def wait_first(*awaitables: Awaitable[Any], timeout: float | None = None) -> None:
    """Returns when the first has ended, or after `timeout` seconds. Those that were passed as
    tasks go on; all others are cancelled."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, awaitable in zip(tasks, awaitables, strict=True):
            if task is not awaitable:
                task.cancel()
