"""The TLS settings of an HTTPS server, from certificate files that may be renewed."""

from __future__ import annotations

import logging
import os
import ssl

from jaxserve.config import ServerConfig
from jaxserve.errors import ConfigError

logger = logging.getLogger(__name__)

FileState = tuple[int, int, int]


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """The context for HTTPS; None for plain HTTP. When the files have changed, the next connection
    gets what is in them then; if that can't be used, the last usable certificate goes on.

    Raises:
        ConfigError: a file can't be read, or the key doesn't belong to the certificate.
    """
    return None if config.ssl_certfile is None else _Certificates(config).listening


class _Certificates:
    """The contents of the certificate files.

    listening: the context that the server listens with.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._files = [
            file
            for file in (config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs)
            if file is not None
        ]
        self._seen = self._state()
        self.listening = self._current = _load(config)
        self.listening.sni_callback = self._on_handshake

    def _on_handshake(
        self, connection: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext
    ) -> None:
        """Called by each handshake, whether or not the client names the server."""
        state = self._state()
        if state != self._seen:
            self._seen = state
            try:
                self._current = _load(self._config)
                logger.info("the certificate files have changed, and are used from now on")
            except ConfigError as error:
                logger.error("%s; the certificate from before goes on", error)
        if self._current is not self.listening:
            connection.context = self._current

    def _state(self) -> list[FileState | None]:
        """Changes when a file is replaced or written."""
        return [_state_of(file) for file in self._files]


def _state_of(file: str) -> FileState | None:
    try:
        stat = os.stat(file)
    except OSError:
        return None  # it is being replaced, or gone
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _load(config: ServerConfig) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        assert config.ssl_certfile is not None
        # With an empty password an encrypted key is an error, not a question on the terminal.
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=lambda: "")
        if config.ssl_ca_certs is not None:
            context.load_verify_locations(config.ssl_ca_certs)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # the base class of ssl.SSLError
        raise ConfigError(f"the certificate files can't be used: {error}") from None
    return context
