"""BlockPool: equal blocks with reference counts, and the cache of blocks found by content.

Every operation is O(1) a block, whatever the size of the pool. A free block is either plain or
cached (still findable by its hash); plain ones are taken first, cached ones in the order in which
they were freed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from scheduler.events import BlockEvent, BlockRemoved, CacheCleared

NULL_BLOCK = 0  # padding writes there; nobody owns it


class BlockPool:
    """num_blocks blocks, of which num_blocks - 1 can be taken.

    Args:
        num_groups: cache groups; each finds its own blocks only.
        log: where to note blocks that are no longer findable.
    """

    def __init__(
        self, num_blocks: int, num_groups: int = 1, log: list[BlockEvent] | None = None
    ) -> None:
        self.num_blocks = num_blocks
        self._log = log
        self._references = [0] * num_blocks
        self._plain = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # free but findable, oldest first
        self._by_hash: tuple[dict[bytes, int], ...] = tuple({} for _ in range(num_groups))
        self._hash_of: dict[int, tuple[int, bytes]] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be taken, cached ones included."""
        return len(self._plain) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - 1 - self.num_free

    def references(self, block: int) -> int:
        """Block tables that hold the block."""
        return self._references[block]

    def take(self) -> int:
        """Takes a free block, which is then no longer findable. Check num_free first."""
        if self._plain:
            block = self._plain.pop()
        else:
            block = self._cached.popitem(last=False)[0]
            group, digest = self._hash_of.pop(block)
            del self._by_hash[group][digest]
            if self._log is not None:
                self._log.append(BlockRemoved(group, digest))
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Holds a block once more; a free cached one comes back to life."""
        if self._references[block] == 0:
            del self._cached[block]
        self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Lets go of blocks; those put in first are reused first. Null blocks are passed over."""
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            left = self._references[block] - 1
            if left < 0:
                raise AssertionError(f"block {block} was freed twice")
            self._references[block] = left
            if left == 0:
                if block in self._hash_of:
                    self._cached[block] = None
                else:
                    self._plain.append(block)

    def find(self, group: int, digest: bytes) -> int | None:
        """The block with this content, used or free."""
        return self._by_hash[group].get(digest)

    def is_exclusive(self, block: int) -> bool:
        """Whether its one holder may write to it: nobody else holds it or can find it."""
        return self._references[block] == 1 and block not in self._hash_of

    def register(self, group: int, block: int, digest: bytes) -> bool:
        """Makes a used block findable; False if another with its content is already."""
        known = self._by_hash[group]
        if digest in known:
            return False
        known[digest] = block
        self._hash_of[block] = (group, digest)
        return True

    def reset(self) -> bool:
        """Forgets all cached content; refused (False) while any block is used."""
        if self.num_used:
            return False
        self._plain.extend(self._cached)
        self._cached.clear()
        self._hash_of.clear()
        for known in self._by_hash:
            known.clear()
        if self._log is not None:
            self._log.append(CacheCleared())
        return True
