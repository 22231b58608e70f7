"""The TLS settings of an HTTPS server, from certificate files."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from jaxserve.config import ServerConfig
from jaxserve.errors import ConfigError

log = logging.getLogger(__name__)

RENEWAL_CHECK_S = 30.0


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """The context for HTTPS; None for plain HTTP.

    Raises:
        ConfigError: a file can't be read, or the key doesn't belong to the certificate.
    """
    if config.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        _load_certificate(context, config)
        if config.ssl_ca_certs is not None:
            context.load_verify_locations(config.ssl_ca_certs)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # the base class of ssl.SSLError
        raise ConfigError(f"the certificate files can't be used: {error}") from None
    return context


def _load_certificate(context: ssl.SSLContext, config: ServerConfig) -> None:
    assert config.ssl_certfile is not None
    # With an empty password an encrypted key is an error, not a question on the terminal.
    context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=lambda: "")


async def watch_certificate(context: ssl.SSLContext, config: ServerConfig) -> None:
    """Has new connections use the certificate as it is on disk, when it is renewed there. If the
    files can't be used, the certificate before stays. Runs until it is cancelled."""
    files = [Path(file) for file in (config.ssl_certfile, config.ssl_keyfile) if file is not None]
    loaded = _written(files)
    while True:
        await asyncio.sleep(RENEWAL_CHECK_S)
        if (now := _written(files)) == loaded:
            continue
        loaded = now
        try:
            _load_certificate(context, config)
            log.info("the certificate was renewed: new connections use %s", files[0])
        except OSError as error:
            log.warning("the renewed certificate can't be used, the old one stays: %s", error)


def _written(files: list[Path]) -> list[int]:
    """When files were last written; 0 for one that isn't there."""
    return [file.stat().st_mtime_ns if file.exists() else 0 for file in files]
