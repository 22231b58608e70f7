"""Several server processes in front of one engine (--api-workers)."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily

from bench.common.server_client import events_of, scrape
from jaxserve.config import ServerConfig
from jaxserve.errors import ConfigError
from jaxserve.server.admission import Admission
from jaxserve.server.observability import worker_stats
from jaxserve.server.observability.worker_stats import WorkerStats
from jaxserve.server.processes.listening_socket import bound_socket

# Only against hanging; nothing is measured.
LIMIT = aiohttp.ClientTimeout(total=120)
LONG = {"model": "tiny", "prompt": "a", "max_tokens": 900, "ignore_eos": True, "stream": True}
PROCESSES = 3
FLAGS = ("--api-workers", str(PROCESSES), "--drain-timeout", "60")


def new_connections(server: Any) -> aiohttp.ClientSession:
    """A session with a new connection for each request, so that all processes get some."""
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    return aiohttp.ClientSession(server.url, timeout=LIMIT, connector=connector)


async def last_event(response: aiohttp.ClientResponse) -> Any:
    return [event async for event in events_of(response)][-1]


@pytest.mark.slow
async def test_processes_report_shared_figures_and_stop_together(
    start_tiny: Callable[..., Any],
) -> None:
    server = start_tiny(*FLAGS)
    async with new_connections(server) as http:
        short = LONG | {"max_tokens": 3, "stream": False}
        answers = await asyncio.gather(
            *(http.post("/v1/completions", json=short) for _ in range(24))
        )
        assert {answer.status for answer in answers} == {200}
        readings = await asyncio.gather(*(scrape(http) for _ in range(48)))
        # Every response, from whichever process, has the figures of all.
        assert len({reading.total("process_start_time_seconds") for reading in readings}) == 1
        servers = {server.process.pid, *server.family} - {server.engine_pid}
        pages = (Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in servers)
        resident = sum(map(int, pages)) * resource.getpagesize()
        for reading in readings:
            memory = reading.total("process_resident_memory_bytes")
            assert memory == pytest.approx(resident, rel=0.2)
            assert reading.total("vllm:generation_tokens_total") == 72
            assert reading.total("vllm:e2e_request_latency_seconds_count") == 24
        assert len({r.total("jaxserve:step_duration_seconds_count") for r in readings}) == 1
        models = await asyncio.gather(*(http.get("/v1/models") for _ in range(12)))
        assert len({await response.text() for response in models}) == 1

        streams = await asyncio.gather(*(http.post("/v1/completions", json=LONG) for _ in range(6)))
        os.kill(server.engine_pid, signal.SIGSTOP)  # so that no stream ends meanwhile
        try:
            loads = [await http.get("/load") for _ in range(12)]
            assert {await load.text() for load in loads} == {'{"server_load":6}'}
        finally:
            os.kill(server.engine_pid, signal.SIGCONT)
        streams.pop().close()
        while (await scrape(http)).total("vllm:num_requests_running") > 5:
            await asyncio.sleep(0.05)
        server.process.send_signal(signal.SIGTERM)
        ends = await asyncio.gather(*map(last_event, streams))
    assert ends == ["[DONE]"] * 5
    assert await asyncio.to_thread(server.wait) == 0
    assert "Traceback" not in server.errors()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["the engine process", "a server process"])
async def test_the_death_of_one_process_ends_all(
    start_tiny: Callable[..., Any], victim: str
) -> None:
    server = start_tiny(*FLAGS)
    engine, others = server.engine_pid, set(server.family) - {server.engine_pid}
    assert len(others) == PROCESSES - 1
    async with new_connections(server) as http:
        streams = [await http.post("/v1/completions", json=LONG) for _ in range(8)]
        if victim == "the engine process":
            os.kill(engine, signal.SIGKILL)
            ends = await asyncio.gather(*map(last_event, streams))
            assert {end["error"]["code"] for end in ends} == {"engine_dead"}
        else:
            os.kill(others.pop(), signal.SIGKILL)
    assert await asyncio.to_thread(server.wait) == 1
    assert f"jaxserve: {victim} died" in server.errors()
    assert victim == "the engine process" or "has left; aborted" in server.errors()
    assert "Traceback" not in server.errors()


async def test_a_process_that_hangs_is_left_out_of_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_stats, "TIMEOUT", aiohttp.ClientTimeout(total=0.2))
    own, good, hung = (WorkerStats(tmp_path, number, 3) for number in range(3))
    never = asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await never.wait()
        writer.close()

    registry, admission = CollectorRegistry(), Admission()
    async with (
        good.serve_own(admission, registry),
        await asyncio.start_unix_server(hang, hung._socket(2)),
    ):
        with admission.admit():
            assert await own.in_flight() == 1
        counted = CounterMetricFamily("things", "Things.", 2)
        assert [metric.name for metric in await own.metrics([counted])] == ["things"]
        never.set()
    assert "api-worker-2 doesn't answer" in caplog.text


@pytest.mark.slow
async def test_every_process_notices_a_stuck_engine(start_tiny: Callable[..., Any]) -> None:
    """Also those that have sent it no request."""
    server = start_tiny(*FLAGS, "--stall-timeout", "1")
    async with new_connections(server) as http:

        async def health() -> set[int]:
            answers = await asyncio.gather(*(http.get("/health") for _ in range(24)))
            return {answer.status for answer in answers}

        stream = await http.post("/v1/completions", json=LONG)
        while (await scrape(http)).total("vllm:num_requests_running") < 1:
            await asyncio.sleep(0.05)
        os.kill(server.engine_pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                while await health() != {503}:
                    await asyncio.sleep(0.1)
        finally:
            os.kill(server.engine_pid, signal.SIGCONT)
        assert await last_event(stream) == "[DONE]"
        while (await scrape(http)).total("vllm:num_requests_running"):
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.5)
        assert await health() == {200}


@pytest.mark.slow
def test_sigterm_to_all_processes_during_start_up(start_tiny: Callable[..., Any]) -> None:
    server = start_tiny(*FLAGS, wait=False)
    while len(server.find_family()) < PROCESSES:
        assert server.process.poll() is None, server.errors()
        time.sleep(0.01)
    for pid in (server.process.pid, *server.family):
        os.kill(pid, signal.SIGTERM)
    assert server.wait() == 0
    assert "Traceback" not in server.errors()


@pytest.mark.slow
def test_the_death_of_the_engine_during_start_up_ends_all(
    start_tiny: Callable[..., Any],
) -> None:
    server = start_tiny(*FLAGS, wait=False)
    while len(server.find_family()) < PROCESSES:
        assert server.process.poll() is None, server.errors()
        time.sleep(0.01)
    os.kill(server.engine_pid, signal.SIGKILL)
    assert server.wait() == 1
    assert "jaxserve: the engine process died" in server.errors()
    assert "Traceback" not in server.errors()


async def test_process_metrics_are_added_but_the_start_time(tmp_path: Path) -> None:
    own, other = ProcessCollector(registry=None), CollectorRegistry()
    ProcessCollector(registry=other)
    begun = {family.name: family.samples[0].value for family in own.collect()}
    async with WorkerStats(tmp_path, 1, 2).serve_own(Admission(), other):
        joined = await WorkerStats(tmp_path, 0, 2).metrics(own.collect())
    both = {family.name: family.samples[0].value for family in joined}
    assert both["process_start_time_seconds"] == begun["process_start_time_seconds"]
    for name in ("process_resident_memory_bytes", "process_cpu_seconds", "process_max_fds"):
        assert both[name] == pytest.approx(2 * begun[name], rel=0.3)


async def test_processes_that_do_not_listen_are_left_out(tmp_path: Path) -> None:
    """During start-up and shutdown some processes serve and others don't."""
    alone = WorkerStats(tmp_path, 0, 3)
    assert await alone.in_flight() == 0
    own = CounterMetricFamily("requests", "Requests.", 2)
    assert list(await alone.metrics([own])) == [own]
    busy = Admission()
    with busy.admit():
        async with WorkerStats(tmp_path, 2, 3).serve_own(busy, CollectorRegistry()):
            assert await alone.in_flight() == 1
    assert await alone.in_flight() == 0


def test_a_port_in_use_is_an_error_though_ports_are_shared() -> None:
    with bound_socket(ServerConfig(port=0, api_workers=2)) as first:
        first.listen()
        port = first.getsockname()[1]
        config = ServerConfig(port=port, api_workers=2)
        with pytest.raises(ConfigError, match="choose another --port"):
            bound_socket(config)
        bound_socket(config, shared_port=port).close()
