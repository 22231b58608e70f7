"""HTTPS by certificate files. No engine is needed."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path
from typing import cast

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from jaxserve.config import ServerConfig
from jaxserve.engine.frontend.client import EngineClient
from jaxserve.errors import ConfigError
from jaxserve.server.app import create_app
from jaxserve.server.processes import tls
from jaxserve.server.processes.tls import tls_context, watch_certificate


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


async def test_new_connections_use_a_renewed_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "RENEWAL_CHECK_S", 0.01)
    certificate, key = make_certificate(tmp_path)
    config = ServerConfig(ssl_certfile=certificate, ssl_keyfile=key)
    context = tls_context(config)
    assert context is not None
    server = TestServer(create_app(cast(EngineClient, None), ServerConfig()), scheme="https")
    await server.start_server(ssl=context)
    watching = asyncio.create_task(watch_certificate(context, config))
    try:
        await asyncio.sleep(0.05)
        Path(certificate).write_text("half of a file")  # while it is being renewed
        await asyncio.sleep(0.05)
        make_certificate(tmp_path)
        trusting = ssl.create_default_context(cafile=certificate)
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector) as http:
            async with asyncio.timeout(30):
                while True:
                    try:
                        async with http.get(server.make_url("/version"), ssl=trusting) as response:
                            assert response.status == 200
                            break
                    except aiohttp.ClientConnectorCertificateError:
                        await asyncio.sleep(0.01)
    finally:
        watching.cancel()
        await server.close()


async def test_clients_need_a_certificate_where_one_is_asked_for(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = tls_context(
        ServerConfig(ssl_certfile=certificate, ssl_keyfile=key, ssl_ca_certs=certificate)
    )
    server = TestServer(create_app(cast(EngineClient, None), ServerConfig()), scheme="https")
    await server.start_server(ssl=context)
    async with TestClient(server) as http:
        bare = ssl.create_default_context(cafile=certificate)
        with pytest.raises(aiohttp.ClientError):
            await http.get("/version", ssl=bare)
        known = ssl.create_default_context(cafile=certificate)
        known.load_cert_chain(certificate, key)
        assert (await http.get("/version", ssl=known)).status == 200


def test_unusable_certificates_are_reported_before_the_model_loads(tmp_path: Path) -> None:
    assert tls_context(ServerConfig()) is None
    (tmp_path / "cert.pem").write_text("nonsense")
    for name in ("cert.pem", "none.pem"):
        with pytest.raises(ConfigError, match="certificate"):
            tls_context(ServerConfig(ssl_certfile=str(tmp_path / name)))
    with pytest.raises(ConfigError, match="ssl_certfile"):
        ServerConfig(ssl_keyfile="key.pem")
