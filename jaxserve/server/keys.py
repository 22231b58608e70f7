"""API keys: which are known, and a salt for each."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from jaxserve.config import ServerConfig
from jaxserve.errors import ConfigError

ENVIRONMENT = "JAXSERVE_API_KEY"


class Keys:
    """The keys that are let in. Only their digests are kept."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key) for key in keys]

    @classmethod
    def load(cls, config: ServerConfig, environ: Mapping[str, str] = os.environ) -> Keys:
        """The keys of the settings, of their file and of the environment together.

        Raises:
            ConfigError: the file can't be read or has no key in it, or a key is empty.
        """
        keys = [*config.api_key, *_listed(environ.get(ENVIRONMENT, "").split(","))]
        if ENVIRONMENT in environ and len(keys) == len(config.api_key):
            raise ConfigError(f"{ENVIRONMENT} has no key in it: unset it, or set one")
        if config.api_key_file is not None:
            try:
                lines = Path(config.api_key_file).read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"api_key_file can't be read: {error}") from None
            if not (listed := _listed(lines)):
                raise ConfigError(f"api_key_file {config.api_key_file} has no key in it")
            keys += listed
        if not all(keys):
            raise ConfigError("api_key must not be empty")
        return cls(keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def find(self, key: str) -> str | None:
        """The salt of a known key, which tells keys apart and gives none away; None for another.

        All keys are compared, each in constant time: how long it takes tells nothing.
        """
        digest = _digest(key)
        same = [hmac.compare_digest(digest, known) for known in self._digests]
        return hashlib.sha256(b"cache salt" + digest).hexdigest() if any(same) else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _listed(lines: Iterable[str]) -> list[str]:
    return [key for line in lines if (key := line.strip())]
