"""HTTPS by certificate files. No engine is needed."""

from __future__ import annotations

import asyncio
import logging
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


async def test_renewed_certificates_are_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    certificate, key = make_certificate(old)
    context = tls_context(ServerConfig(ssl_certfile=certificate, ssl_keyfile=key))
    server = TestServer(create_app(cast(EngineClient, None), ServerConfig()), scheme="https")
    await server.start_server(ssl=context)

    async def served(host: str) -> bytes | None:
        """The certificate that a new connection gets."""
        any_certificate = ssl.create_default_context()
        any_certificate.check_hostname = False
        any_certificate.verify_mode = ssl.CERT_NONE
        port = server.port
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=any_certificate, server_hostname=host
        )
        connection: ssl.SSLObject = writer.get_extra_info("ssl_object")
        writer.close()
        return connection.getpeercert(binary_form=True)

    def read(file: Path) -> bytes:
        return ssl.PEM_cert_to_DER_cert(file.read_text())

    first = read(old / "cert.pem")
    renewed, renewed_key = make_certificate(new)
    try:
        for host in ("localhost", "127.0.0.1"):  # with and without a name in the handshake
            assert await served(host) == first
        # A certificate without its key, as between two writes of a renewal, isn't used.
        Path(certificate).write_text(Path(renewed).read_text())
        assert await served("localhost") == first
        Path(key).unlink()
        assert await served("localhost") == first
        Path(certificate).write_text("half of a file")
        assert await served("localhost") == first
        Path(certificate).write_text(Path(renewed).read_text())
        Path(renewed_key).replace(key)
        for host in ("127.0.0.1", "localhost"):
            assert await served(host) == read(new / "cert.pem") != first
        assert [r.levelname for r in caplog.records if "certificate" in r.getMessage()] == [
            *["ERROR"] * 3,
            "INFO",
        ]
    finally:
        await server.close()


async def test_only_clients_with_a_certificate_are_served(tmp_path: Path) -> None:
    for name in ("server", "client", "other"):
        (tmp_path / name).mkdir()
    certificate, key = make_certificate(tmp_path / "server")
    client_certificate, client_key = make_certificate(tmp_path / "client")
    other_certificate, other_key = make_certificate(tmp_path / "other")
    authorities = tmp_path / "authorities.pem"
    authorities.write_text(Path(client_certificate).read_text())
    config = ServerConfig(ssl_certfile=certificate, ssl_keyfile=key, ssl_ca_certs=str(authorities))
    server = TestServer(create_app(cast(EngineClient, None), ServerConfig()), scheme="https")
    await server.start_server(ssl=tls_context(config))

    async def status(*own: str) -> int | None:
        trusting = ssl.create_default_context(cafile=certificate)
        if own:
            trusting.load_cert_chain(*own)
        try:
            async with (
                aiohttp.ClientSession() as http,
                http.get(server.make_url("/version"), ssl=trusting) as response,
            ):
                return response.status
        except (aiohttp.ClientError, ConnectionError):
            return None

    try:
        assert await status() is None
        assert await status(other_certificate, other_key) is None
        assert await status(client_certificate, client_key) == 200
        authorities.write_text(Path(other_certificate).read_text())  # renewed, too
        assert await status(other_certificate, other_key) == 200
        assert await status(client_certificate, client_key) is None
    finally:
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
