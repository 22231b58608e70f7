"""BlockPool: equal blocks with reference counts, and the cache of blocks found by content.

Every operation is O(1) a block, whatever the size of the pool. A free block is either plain or
cached (still findable by its hash); plain ones are taken first, cached ones in the order in which
they were freed.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

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
        # Free but findable: a ring of links through the null block, the first to leave after it.
        self._next = [NULL_BLOCK] * num_blocks
        self._previous = [NULL_BLOCK] * num_blocks
        self._num_cached = 0
        self._by_hash: tuple[dict[bytes, int], ...] = tuple({} for _ in range(num_groups))
        self._digests: list[bytes | None] = [None] * num_blocks  # of findable blocks

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
        """Takes a free block, which is then no longer findable. Check num_free first."""
        block = self._plain.pop() if self._plain else self._evict(1)[0]
        self._references[block] = 1
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
        return blocks

    def _evict(self, count: int) -> list[int]:
        """Takes the cached blocks that were freed first, and forgets their content."""
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
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Holds blocks once more (free cached ones revive). Null blocks are passed over."""
        references = self._references
        for block in blocks:
            if block != NULL_BLOCK:
                if references[block] == 0:
                    self._unlink(block)
                references[block] += 1

    def _unlink(self, block: int) -> None:
        previous, following = self._previous[block], self._next[block]
        self._next[previous], self._previous[following] = following, previous
        self._num_cached -= 1

    def release(self, blocks: Iterable[int]) -> None:
        """Lets go of blocks; cached ones are reused in this order. Null blocks are passed over."""
        references, digests, plain = self._references, self._digests, self._plain
        previous, following, last = self._previous, self._next, self._previous[NULL_BLOCK]
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            left = references[block] - 1
            if left < 0:
                raise AssertionError(f"block {block} was freed twice")
            references[block] = left
            if left == 0:
                if digests[block] is None:
                    plain.append(block)
                else:
                    following[last], previous[block], last = block, last, block
                    self._num_cached += 1
        following[last], previous[NULL_BLOCK] = NULL_BLOCK, last

    def find(self, group: int, digest: bytes) -> int | None:
        """The block with this content, used or free."""
        return self._by_hash[group].get(digest)

    def find_leading(self, group: int, digests: list[bytes]) -> list[int]:
        """The blocks with these contents, up to the first that isn't found."""
        found = map(self._by_hash[group].get, digests)
        return [block for block in takewhile(bool, found) if block]  # no found block is null

    def is_exclusive(self, block: int) -> bool:
        """Whether its one holder may write to it: nobody else holds it or can find it."""
        return self._references[block] == 1 and self._digests[block] is None

    def register(self, group: int, blocks: list[int], digests: list[bytes]) -> None:
        """Makes used blocks findable, but for null blocks and content that is findable already."""
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
        for known in self._by_hash:
            known.clear()
        if self._log is not None:
            self._log.append(CacheCleared())
        return True
