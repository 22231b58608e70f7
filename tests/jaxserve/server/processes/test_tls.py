"""HTTPS by certificate files. No engine is needed."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import cast

import pytest
from aiohttp.test_utils import TestClient, TestServer

from jaxserve.config import ServerConfig
from jaxserve.engine.frontend.client import EngineClient
from jaxserve.errors import ConfigError
from jaxserve.server.app import create_app
from jaxserve.server.processes.tls import tls_context


def make_certificate(folder: Path) -> tuple[str, str]:
    certificate, key = str(folder / "cert.pem"), str(folder / "key.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
            *("-keyout", key, "-out", certificate, "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


async def test_https(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = tls_context(ServerConfig(ssl_certfile=certificate, ssl_keyfile=key))
    server = TestServer(create_app(cast(EngineClient, None), ServerConfig()), scheme="https")
    await server.start_server(ssl=context)
    async with TestClient(server) as http:
        trusting = ssl.create_default_context(cafile=certificate)
        assert (await http.get("/version", ssl=trusting)).status == 200


def test_unusable_certificates_are_reported_before_the_model_loads(tmp_path: Path) -> None:
    assert tls_context(ServerConfig()) is None
    (tmp_path / "cert.pem").write_text("nonsense")
    for name in ("cert.pem", "none.pem"):
        with pytest.raises(ConfigError, match="certificate"):
            tls_context(ServerConfig(ssl_certfile=str(tmp_path / name)))
    with pytest.raises(ConfigError, match="ssl_certfile"):
        ServerConfig(ssl_keyfile="key.pem")
