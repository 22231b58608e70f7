"""HTTPS by certificate files."""

from __future__ import annotations

import ssl

from jaxserve.config import ServerConfig
from jaxserve.errors import ConfigError


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """What HTTPS needs; None for plain HTTP.

    Raises:
        ConfigError: a file can't be read, or the key isn't the certificate's.
    """
    if config.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # An encrypted key fails instead of asking the terminal for its password.
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=lambda: "")
        if config.ssl_ca_certs is not None:
            context.load_verify_locations(config.ssl_ca_certs)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"the certificate files can't be used: {error}") from None
    return context
