"""BlockPool: equal blocks with reference counts, and an index of the full ones by content.

Every operation is O(1) a block, whatever the size of the pool. A free block is either plain or
cached (still found by its hash); plain ones are taken first, then cached ones in the order in
which they were freed (LRU).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from scheduler.blocks.events import BlockEvent, BlockRemoved, CacheCleared

NULL_BLOCK = 0  # padding is written there; no sequence owns it


class BlockPool:
    """num_blocks blocks, of which num_blocks - 1 can be taken.

    Args:
        num_groups: cache groups; each finds its own blocks only.
        log: gets an event for each block that can no longer be found.
    """

    def __init__(
        self, num_blocks: int, num_groups: int = 1, log: list[BlockEvent] | None = None
    ) -> None:
        self.num_blocks = num_blocks
        self.num_evicted = 0  # counter of blocks whose cached content was forgotten to take them
        # While somebody watches the pool, it gets the blocks that are taken, shared and released.
        self.changed: set[int] | None = None
        self._log = log
        self._references = [0] * num_blocks
        self._plain = list(range(num_blocks - 1, NULL_BLOCK, -1))
        # Free cached blocks: a doubly linked ring through the null block, the next to be evicted
        # right after it.
        self._next = [NULL_BLOCK] * num_blocks
        self._previous = [NULL_BLOCK] * num_blocks
        self._num_cached = 0
        self._by_hash: tuple[dict[bytes, int], ...] = tuple({} for _ in range(num_groups))
        self._digests: list[bytes | None] = [None] * num_blocks  # of blocks in _by_hash

    @property
    def num_free(self) -> int:
        """Blocks that can be taken, cached ones included."""
        return len(self._plain) + self._num_cached

    @property
    def num_used(self) -> int:
        return self.num_blocks - 1 - self.num_free

    def references(self, block: int) -> int:
        """Block tables that hold the block."""
        return self._references[block]

    def take(self) -> int:
        """Takes a free block; its cached content is forgotten. Check num_free first."""
        block = self._plain.pop() if self._plain else self._evict(1)[0]
        self._references[block] = 1
        if self.changed is not None:
            self.changed.add(block)
        return block

    def take_many(self, count: int) -> list[int]:
        """As take(), `count` times."""
        split = max(0, len(self._plain) - count)
        blocks = self._plain[split:]
        del self._plain[split:]
        if len(blocks) < count:
            blocks += self._evict(count - len(blocks))
        references = self._references
        for block in blocks:
            references[block] = 1
        if self.changed is not None:
            self.changed.update(blocks)
        return blocks

    def _evict(self, count: int) -> list[int]:
        """Takes the cached blocks that were freed first; their content is forgotten."""
        digests, following = self._digests, self._next
        blocks, block = [], NULL_BLOCK
        for _ in range(count):
            block = following[block]
            blocks.append(block)
            digest, digests[block] = digests[block], None
            assert digest is not None
            for group, known in enumerate(self._by_hash):
                if known.get(digest) == block:
                    del known[digest]
                    if self._log is not None:
                        self._log.append(BlockRemoved(group, digest))
        following[NULL_BLOCK], self._previous[following[block]] = following[block], NULL_BLOCK
        self._num_cached -= count
        self.num_evicted += count
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Adds a reference to each block; free cached ones are in use again. Skips null blocks."""
        references, changed = self._references, self.changed
        for block in blocks:
            if block != NULL_BLOCK:
                if references[block] == 0:
                    self._unlink(block)
                references[block] += 1
                if changed is not None:
                    changed.add(block)

    def _unlink(self, block: int) -> None:
        previous, following = self._previous[block], self._next[block]
        self._next[previous], self._previous[following] = following, previous
        self._num_cached -= 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drops a reference to each block; cached ones are evicted in this order. Skips null
        blocks."""
        references, digests, plain = self._references, self._digests, self._plain
        previous, following, last = self._previous, self._next, self._previous[NULL_BLOCK]
        changed = self.changed
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            left = references[block] - 1
            if left < 0:
                raise AssertionError(f"block {block} was freed twice")
            references[block] = left
            if changed is not None:
                changed.add(block)
            if left == 0:
                if digests[block] is None:
                    plain.append(block)
                else:
                    following[last], previous[block], last = block, last, block
                    self._num_cached += 1
        following[last], previous[NULL_BLOCK] = NULL_BLOCK, last

    def is_cached(self, block: int) -> bool:
        """Whether the prefix cache finds the block."""
        return self._digests[block] is not None

    def find(self, group: int, digest: bytes) -> int | None:
        """The block with this content, in use or free."""
        return self._by_hash[group].get(digest)

    def find_leading(self, group: int, digests: list[bytes]) -> list[int]:
        """The blocks with these contents, up to the first that isn't found."""
        found = map(self._by_hash[group].get, digests)
        return [block for block in takewhile(bool, found) if block]  # no found block is null

    def is_exclusive(self, block: int) -> bool:
        """Whether its holder may write to it: one table holds it, and it isn't in the cache."""
        return self._references[block] == 1 and self._digests[block] is None

    def register(self, group: int, blocks: list[int], digests: list[bytes]) -> None:
        """Adds used blocks to the cache, except null blocks and content that is in it already."""
        known, digest_of = self._by_hash[group], self._digests
        for block, digest in zip(blocks, digests, strict=True):
            if digest not in known and block != NULL_BLOCK:
                known[digest] = block
                digest_of[block] = digest

    def reset(self) -> bool:
        """Forgets all cached content; refused (False) while any block is used."""
        if self.num_used:
            return False
        while self._num_cached:
            block = self._next[NULL_BLOCK]
            self._unlink(block)
            self._digests[block] = None
            self._plain.append(block)
            if self.changed is not None:
                self.changed.add(block)
        for known in self._by_hash:
            known.clear()
        if self._log is not None:
            self._log.append(CacheCleared())
        return True
