"""Changes of the prefix cache, for a router that tracks what each engine has cached."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockStored:
    """A full block was added to the prefix cache.

    Args:
        group: cache group.
        digest, parent: content hash of the block, and of the one before it (None: it is the first).
        token_ids: its tokens.
    """

    group: int
    digest: bytes
    parent: bytes | None
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """A cached block was taken for other content."""

    group: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """All cached content was forgotten."""


BlockEvent = BlockStored | BlockRemoved | CacheCleared
