"""Runs a file of requests in OpenAI's batch format: one request a line, and one result a line.

The output file is the only record of progress. Each result is written as one whole line, so after
the process was killed, the next run does the requests without a result and repeats none.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from tqdm import tqdm

from jaxserve.config import EngineConfig, ServerConfig
from jaxserve.engine.frontend.client import EngineClient
from jaxserve.errors import ConfigError, EngineDeadError
from jaxserve.server.api_keys import ApiKeys
from jaxserve.server.app import create_app

RETRIED_STATUSES = (429, 503)
_NO_LIMIT = aiohttp.ClientTimeout()


class BatchRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A line of the input file.

    Args:
        custom_id: chosen by the caller, unique in the file.
    """

    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


class BatchResponse(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchResult(msgspec.Struct):
    """A line of the output file. Errors are in the response's body."""

    id: str
    custom_id: str
    response: BatchResponse
    error: None = None


class _FinishedLine(msgspec.Struct):
    custom_id: str


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """Numbers of requests: all, those that an earlier run has done, and those of this run whose
    result is an error."""

    total: int
    before: int
    failed: int


def read_requests(file: Path) -> Iterator[BatchRequest]:
    """The requests of an input file.

    Raises:
        ConfigError: names the line that is malformed.
    """
    decode = msgspec.json.Decoder(BatchRequest).decode
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                request = decode(line)
            except msgspec.DecodeError as error:
                raise ConfigError(f"{file}, line {number}: {error}") from None
            if request.method != "POST" or not request.url.startswith("/v1/"):
                raise ConfigError(f"{file}, line {number}: only POST to /v1/... can be batched")
            if request.body.get("stream"):
                raise ConfigError(f"{file}, line {number}: a batch can't stream; leave stream out")
            yield request


def check_requests(file: Path) -> set[str]:
    """The ids of an input file.

    Raises:
        ConfigError: a line is malformed, or an id comes twice.
    """
    ids: set[str] = set()
    for request in read_requests(file):
        if request.custom_id in ids:
            raise ConfigError(f"{file}: custom_id {request.custom_id!r} comes twice")
        ids.add(request.custom_id)
    return ids


class OutputFile:
    """The results so far. An incomplete last line, left by a process that was killed, is removed.

    Raises:
        ConfigError: another process is writing the file, or it isn't a batch's output.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise ConfigError(f"{path} is being written by another process") from None
        self.done: set[str] = set()
        decode = msgspec.json.Decoder(_FinishedLine).decode
        valid_bytes = 0
        with path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                try:
                    self.done.add(decode(line).custom_id)
                except msgspec.DecodeError as error:
                    raise ConfigError(f"{path} isn't the output of a batch: {error}") from None
                valid_bytes += len(line)
        os.truncate(self._file, valid_bytes)

    def write(self, result: BatchResult) -> None:
        line = msgspec.json.encode(result) + b"\n"
        while line:  # a full disk writes only a part, and then raises
            line = line[os.write(self._file, line) :]
        self.done.add(result.custom_id)

    def close(self) -> None:
        os.close(self._file)


async def run_batch(
    engine: EngineConfig, source: Path, target: Path, max_in_flight: int, progress: bool
) -> BatchSummary:
    """Runs all requests of `source` that have no result in `target`.

    Raises:
        ConfigError: a file is malformed.
        ModelError, EngineDeadError: the engine can't start, or died.
    """
    ids = check_requests(source)
    output = OutputFile(target)
    try:
        before, failed = len(output.done & ids), 0
        if ids <= output.done:
            return BatchSummary(len(ids), before, 0)
        bar = tqdm(total=len(ids), initial=before, desc="batch", disable=not progress)
        async with _session(engine, max_in_flight) as http:
            slots = asyncio.Semaphore(max_in_flight)
            async with asyncio.TaskGroup() as tasks:

                async def run_one(request: BatchRequest) -> None:
                    nonlocal failed
                    try:
                        response = await _post(http, request)
                    finally:
                        slots.release()
                    failed += response.status_code != 200
                    new_id = f"batch_req_{uuid.uuid4().hex}"
                    output.write(BatchResult(new_id, request.custom_id, response))
                    bar.update()

                for request in read_requests(source):
                    if request.custom_id not in output.done:
                        await slots.acquire()
                        tasks.create_task(run_one(request))
        return BatchSummary(len(ids), before, failed)
    except ExceptionGroup as group:  # the first failure has cancelled the other requests
        raise group.exceptions[0] from None
    finally:
        output.close()


@asynccontextmanager
async def _session(
    engine: EngineConfig, max_in_flight: int
) -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP session with a server of its own, on a free local port and with a random key."""
    client = await EngineClient.start(engine)
    key = secrets.token_urlsafe()
    app = create_app(client, ServerConfig(access_log=False), ApiKeys([key]))
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
        body = msgspec.json.encode(request.body)
        headers = {"Content-Type": "application/json"}
        async with http.post(
            request.url, data=body, headers=headers, timeout=_NO_LIMIT
        ) as response:
            answer = await response.read()
            if response.status not in RETRIED_STATUSES:
                request_id = response.headers["X-Request-Id"]
                return BatchResponse(response.status, request_id, msgspec.Raw(answer))
        if msgspec.json.decode(answer)["error"]["code"] == "engine_dead":
            raise EngineDeadError("the engine process died; run the same command to go on")
        await asyncio.sleep(float(response.headers["Retry-After"]))
