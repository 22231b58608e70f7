"""The socket that a server listens on."""

from __future__ import annotations

import socket
import ssl

from jaxserve.config import ServerConfig
from jaxserve.errors import ConfigError


def bound_socket(config: ServerConfig, shared_port: int | None = None) -> socket.socket:
    """A bound socket for a server process.

    Args:
        shared_port: the port that another process of this server listens on.

    Raises:
        ConfigError: the address can't be bound.
    """
    port = config.port if shared_port is None else shared_port
    if shared_port is None and port and config.api_workers > 1:
        # Bound without SO_REUSEPORT first: with it, binding a port in use doesn't fail.
        _bind(config.host, port, share=False).close()
    return _bind(config.host, port, share=config.api_workers > 1)


def _bind(host: str, port: int, share: bool) -> socket.socket:
    address = f"{host}:{port}"
    try:
        family, kind, protocol, _, socket_address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"can't listen on {address}: {error.strerror}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(socket_address)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"can't listen on {address}: {error.strerror}; choose another --port or --host"
        ) from None
    return sock


def url_of(sock: socket.socket, tls: ssl.SSLContext | None) -> str:
    """The server's URL on a bound socket."""
    scheme = "http" if tls is None else "https"
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
