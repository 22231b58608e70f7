"""API keys: which ones are valid, and a salt for each."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from jaxserve.config import ServerConfig
from jaxserve.errors import ConfigError

KEYS_VARIABLE = "JAXSERVE_API_KEY"


class ApiKeys:
    """The valid keys. Only their digests are stored."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key) for key in keys]

    @classmethod
    def load(cls, config: ServerConfig, environ: Mapping[str, str] = os.environ) -> ApiKeys:
        """The keys of the settings, of the key file and of the environment together.

        Raises:
            ConfigError: the file can't be read or contains no key, or a key is empty.
        """
        keys = [*config.api_key, *_nonempty(environ.get(KEYS_VARIABLE, "").split(","))]
        if KEYS_VARIABLE in environ and len(keys) == len(config.api_key):
            raise ConfigError(f"{KEYS_VARIABLE} contains no key: unset it, or put a key into it")
        if config.api_key_file is not None:
            try:
                lines = Path(config.api_key_file).read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"api_key_file can't be read: {error}") from None
            if not (in_file := _nonempty(lines)):
                raise ConfigError(f"api_key_file {config.api_key_file} contains no key")
            keys += in_file
        if not all(keys):
            raise ConfigError("api_key must not be empty")
        return cls(keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def find(self, key: str) -> str | None:
        """A salt that is different for each key and doesn't reveal it; None for an invalid key.

        All keys are compared, each in constant time, so that the time reveals nothing.
        """
        digest = _digest(key)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return hashlib.sha256(b"cache salt" + digest).hexdigest() if any(matches) else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _nonempty(lines: Iterable[str]) -> list[str]:
    return [key for line in lines if (key := line.strip())]
