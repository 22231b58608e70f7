"""Where a server listens, and where a proxy says that it does."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from jaxserve.config import ServerConfig
from jaxserve.errors import ConfigError
from jaxserve.server.processes.listening_socket import bound_socket

pytestmark = pytest.mark.slow


async def test_a_unix_socket_and_the_path_of_a_proxy(
    start_tiny: Callable[..., Any], tiny_llama: Path, tmp_path: Path
) -> None:
    path = tmp_path / "server.sock"
    with bound_socket(ServerConfig(uds=str(path))):
        pass  # a socket that a server has left behind
    words = ("--uds", str(path), "--root-path", "/models/a", "--tokenizer", str(tiny_llama))
    server = start_tiny(*words)
    assert server.url == f"unix:{path}"
    assert shlex.split(server.example)[1:3] == ["--unix-socket", str(path)]
    with pytest.raises(ConfigError, match="already in use"):
        bound_socket(ServerConfig(uds=str(path)))
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "temperature": 0}
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http:
        async with http.get("http://localhost/openapi.json") as response:
            assert (await response.json())["servers"] == [{"url": "/models/a"}]
        async with http.post("http://localhost/v1/chat/completions", json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            assert answer["usage"]["completion_tokens"] == 4
    server.process.terminate()
    assert server.wait() == 0
    assert not path.exists()


def test_settings_that_contradict_a_unix_socket() -> None:
    with pytest.raises(ConfigError, match="uds"):
        ServerConfig(uds="x", api_workers=2)
    with pytest.raises(ConfigError, match="root_path"):
        ServerConfig(root_path="a")
