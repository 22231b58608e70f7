"""The end of a server whose engine has died, with an engine that computes nothing."""

from __future__ import annotations

import asyncio
import gc
import signal
from pathlib import Path

import aiohttp
import pytest

from jaxserve.config import EngineConfig, ServerConfig
from jaxserve.engine.frontend.client import EngineClient
from jaxserve.server.observability.worker_stats import WorkerStats
from jaxserve.server.processes import shutdown
from jaxserve.server.processes.listening_socket import bound_socket
from jaxserve.server.processes.server_setup import ServerSetup
from jaxserve.server.processes.shutdown import StopRequest, serve_until_stopped


async def test_probes_get_503_between_the_death_of_the_engine_and_the_end(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "DEAD_ENGINE_NOTICE_S", 1000.0)
    engine, config, stop = EngineConfig(str(tiny_llama)), ServerConfig(port=0), StopRequest()
    client = await EngineClient.start(engine, "tests.fake_engine")
    assert client._connection.process is not None
    with bound_socket(config) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        async with (
            ServerSetup.of(config).listen(client, sock, WorkerStats(client.folder), 0) as (
                context,
                site,
            ),
            aiohttp.ClientSession(url) as http,
        ):

            async def status(path: str) -> int:
                async with http.get(path) as response:
                    return response.status

            end = asyncio.create_task(serve_until_stopped(context, site, stop))
            assert await status("/health") == 200
            client._connection.process.send_signal(signal.SIGKILL)
            await client.wait_dead()
            paths = ("/health", "/ready", "/v1/models")
            assert [await status(path) for path in paths] == [503, 503, 503]
            assert not end.done()
            stop.signal()
            stop.signal()
            assert "engine process died" in (await end or "")
    gc.unfreeze()
