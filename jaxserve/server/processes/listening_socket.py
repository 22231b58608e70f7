"""The socket that a server listens on."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxserve.config import ServerConfig
from jaxserve.errors import ConfigError


def bound_socket(config: ServerConfig, shared_port: int | None = None) -> socket.socket:
    """A bound socket for a server process.

    Args:
        shared_port: the port that another process of this server listens on.

    Raises:
        ConfigError: the address can't be bound.
    """
    if config.uds is not None:
        return _bind_path(Path(config.uds))
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


def _bind_path(path: Path) -> socket.socket:
    """A Unix domain socket; one that a server has left behind is replaced."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket() and sock.connect_ex(str(path)) == errno.ECONNREFUSED:
            path.unlink()
        sock.close()
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(path))
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"can't listen on {path}: {error.strerror or error}; choose another --uds"
        ) from None
    return sock


@contextmanager
def removed_at_end(path: str | None) -> Iterator[None]:
    """Removes a socket's file, if there is one, when the server ends."""
    try:
        yield
    finally:
        if path is not None:
            Path(path).unlink(missing_ok=True)


def url_of(sock: socket.socket, tls: ssl.SSLContext | None) -> str:
    """The server's URL on a bound socket."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    scheme = "http" if tls is None else "https"
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
