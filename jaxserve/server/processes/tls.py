"""The TLS settings of an HTTPS server, from certificate files."""

from __future__ import annotations

import ssl

from jaxserve.config import ServerConfig
from jaxserve.errors import ConfigError


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """The context for HTTPS; None for plain HTTP.

    Raises:
        ConfigError: a file can't be read, or the key doesn't belong to the certificate.
    """
    if config.ssl_certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # With an empty password an encrypted key is an error, not a question on the terminal.
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=lambda: "")
        if config.ssl_ca_certs is not None:
            context.load_verify_locations(config.ssl_ca_certs)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # the base class of ssl.SSLError
        raise ConfigError(f"the certificate files can't be used: {error}") from None
    return context
