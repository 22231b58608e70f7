"""`jaxserve top` beside a real server that is at work."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from jaxserve.cli.top import Top
from tests.jaxserve.server.conftest import ServerProcess

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "jaxserve.cli.main", "top"]


@pytest.fixture(scope="module")
def keyed(small_engine: tuple[str, ...]) -> Iterator[ServerProcess]:
    server = ServerProcess.launch(*small_engine, "--api-key", "secret")
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | environment,
    )


def start_request(server: ServerProcess) -> http.client.HTTPResponse:
    """A long request of three choices that has begun; it ends when the response is closed."""
    body = {"model": server.model, "prompt": "a", "max_tokens": 900, "n": 3, "ignore_eos": True}
    headers = {
        "Content-Type": "application/json",
        "X-Request-Id": "shown-one",
        "Authorization": "Bearer secret",
    }
    data = json.dumps(body | {"stream": True}).encode()
    request = urllib.request.Request(f"{server.url}/v1/completions", data, headers)
    response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=300)
    assert response.readline().startswith(b"data: ")
    return response


def test_running_requests_and_figures_are_shown(keyed: ServerProcess) -> None:
    with start_request(keyed):
        done = run(keyed.url, "--api-key", "secret")
    assert done.returncode == 0, done.stderr
    assert "smollm2-135m" in done.stdout
    assert "running 3" in done.stdout
    assert "shown-one #2" in done.stdout
    assert "3 decoded" in done.stdout
    assert "output tokens/s" in done.stdout


def test_faults_are_one_clear_line(keyed: ServerProcess) -> None:
    for words, says in (
        ((keyed.url,), "--api-key"),
        (("localhost:8000",), "must begin with http://"),
        (("http://127.0.0.1:9",), "9"),
    ):
        done = run(*words, JAXSERVE_API_KEY="")
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("jaxserve: ")
        assert says in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr


def test_names_from_clients_do_not_steer_the_terminal() -> None:
    from rich.console import Console

    top = Top("http://x")
    top.take({"first": True, "started": [[0, "\x1b[2J[red]name", 0, 4, 0]]})
    console = Console(width=80, force_terminal=True)
    with console.capture() as shown:
        console.print(top.render())
    assert "\x1b[2J" not in shown.get()
    assert "[red]name" in shown.get()


def test_events_add_up_to_blocks_and_rates() -> None:
    top = Top("http://x")
    events: list[dict[str, Any]] = [
        {"first": True, "started": [[7, "a", 1, 30, 16]], "tables": [[7, 0, 0, 0, 5, -1]]},
        {"tables": [[7, 0, 0, 2, 9]], "tokens": [7, 40, 41]},
    ]
    for event in events:
        top.take(event)
    assert (top.sequences[7].name, top.sequences[7].blocks) == ("a #1", 3)
    assert top.sequences[7].known == 41
    top.take({"ended": [[7, True]]})
    assert top.sequences == {}
    top.read(10.0, 'vllm:generation_tokens_total{model_name="m"} 100\n')
    top.read(12.0, 'vllm:generation_tokens_total{model_name="m"} 150\n')
    assert top.rates["output tokens/s"] == 25
