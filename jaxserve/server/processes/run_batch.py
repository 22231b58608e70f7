"""Runs a batch file: an engine and a server of its own, and a client that posts the requests."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web
from tqdm import tqdm

from jaxserve.config import EngineConfig, ServerConfig
from jaxserve.engine.frontend.client import EngineClient
from jaxserve.errors import EngineDeadError
from jaxserve.server.api_keys import ApiKeys
from jaxserve.server.app import create_app
from jaxserve.server.processes.batch_file import (
    BadLine,
    BatchError,
    BatchRequest,
    BatchResponse,
    BatchResult,
    OutputFile,
    check_ids,
    read_lines,
)
from jaxserve.server.processes.server_setup import ServerSetup

RETRIED_STATUSES = (429, 503)
_NO_LIMIT = aiohttp.ClientTimeout()


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """Numbers of requests: all, those that an earlier run has done, and those of this run whose
    result is an error."""

    total: int
    before: int
    failed: int


async def run_batch(
    engine: EngineConfig,
    server: ServerConfig,
    source: Path,
    target: Path,
    max_in_flight: int,
    progress: bool,
) -> BatchSummary:
    """Runs all requests of `source` that have no successful result in `target`.

    Args:
        server: of which the settings count that say how requests are answered.

    Raises:
        ConfigError: an id comes twice, or the output file isn't one, or a setting is wrong.
        ModelError, EngineDeadError: the engine can't start, or died.
    """
    setup = ServerSetup.of(server)
    ids, count = check_ids(source)
    output = OutputFile(target)
    try:
        before, failed = len(output.done & ids), 0
        if before == count:
            return BatchSummary(count, before, 0)
        bar = tqdm(total=count, initial=before, desc="batch", disable=not progress)

        def finish(
            custom_id: str | None, response: BatchResponse | None, error: BatchError | None
        ) -> None:
            nonlocal failed
            new_id = f"batch_req_{uuid.uuid4().hex}"
            result = BatchResult(new_id, custom_id, response, error)
            failed += result.failed
            output.write(result)
            bar.update()

        async with _session(engine, setup, max_in_flight) as http:
            slots = asyncio.Semaphore(max_in_flight)
            async with asyncio.TaskGroup() as tasks:

                async def run_one(request: BatchRequest) -> None:
                    try:
                        response = await _post(http, request)
                    finally:
                        slots.release()
                    finish(request.custom_id, response, None)

                for line in read_lines(source):
                    if isinstance(line, BadLine):
                        finish(line.custom_id, None, line.error)
                    elif line.custom_id not in output.done:
                        await slots.acquire()
                        tasks.create_task(run_one(line))
        return BatchSummary(count, before, failed)
    except ExceptionGroup as group:  # the first failure has cancelled the other requests
        raise group.exceptions[0] from None
    finally:
        output.close()


@asynccontextmanager
async def _session(
    engine: EngineConfig, setup: ServerSetup, max_in_flight: int
) -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP session with a server of its own, on a free local port and with a random key."""
    client = await EngineClient.start(engine)
    setup.set_chat_template(client)
    key = secrets.token_urlsafe()
    app = create_app(client, setup.config, ApiKeys([key]))
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    try:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=max_in_flight).start()
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession(
            f"http://{host}:{port}",
            connector=aiohttp.TCPConnector(limit=0),
            headers={"Authorization": f"Bearer {key}"},
        ) as session:
            yield session
    finally:
        await client.close()
        await runner.cleanup()


async def _post(http: aiohttp.ClientSession, request: BatchRequest) -> BatchResponse:
    while True:
        headers = {"Content-Type": "application/json"}
        async with http.post(
            request.url, data=bytes(request.body), headers=headers, timeout=_NO_LIMIT
        ) as response:
            answer = await response.read()
            if response.status not in RETRIED_STATUSES:
                request_id = response.headers["X-Request-Id"]
                return BatchResponse(response.status, request_id, msgspec.Raw(answer))
        if msgspec.json.decode(answer)["error"]["code"] == "engine_dead":
            raise EngineDeadError("the engine process died; run the same command to go on")
        await asyncio.sleep(float(response.headers["Retry-After"]))
