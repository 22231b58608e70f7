"""BlockTables: gives blocks to sequences, one table a cache group, from one pool."""

from __future__ import annotations

from scheduler.blocks.events import BlockEvent, BlockStored
from scheduler.blocks.hashing import block_digests, root_digest
from scheduler.blocks.pool import NULL_BLOCK, BlockPool
from scheduler.config import UNLIMITED, SchedulerConfig
from scheduler.request import Sequence

# (group, index in the table, block, block to copy into it first or the null block)
Growth = tuple[int, int, int, int]
REGISTER_EVERY = 8  # full blocks that a running decode collects before they are hashed


class BlockTables:
    """The only code that takes blocks from the pool and returns them."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.block_size = config.block_size
        self.log: list[BlockEvent] | None = [] if config.enable_events else None
        self.pool = BlockPool(config.num_blocks, len(config.cache_groups), self.log)
        self.windows = tuple(group.window for group in config.cache_groups)
        self.has_windows = any(self.windows)
        # One table that ends where its tokens do, so that a decode's next block is always appended.
        self.is_simple = self.windows == (None,) and not config.max_draft_tokens
        self.num_copies = 0  # counter of blocks that took the place of one with content
        self._caching = config.enable_prefix_caching
        self._spans = tuple(
            group.most_blocks(UNLIMITED, config.block_size, config.max_num_batched_tokens)
            for group in config.cache_groups
        )

    # -- sizes

    def _first(self, group: int, position: int) -> int:
        """Index of the first block that a token at `position` reads."""
        window = self.windows[group]
        return 0 if window is None else max(0, position - window + 1) // self.block_size

    def _ends(self, position: int, num_tokens: int) -> list[int]:
        """Length that each group's table needs for num_tokens when `position` is computed next."""
        num_blocks = -(-num_tokens // self.block_size)
        return [
            min(num_blocks, self._first(group, position) + span)
            for group, span in enumerate(self._spans)
        ]

    # -- prefix cache

    def hash_tokens(self, sequence: Sequence, num_tokens: int) -> None:
        """Extends sequence.hashes to all full blocks of its first num_tokens."""
        hashes, size = sequence.hashes, self.block_size
        start, stop = len(hashes) * size, num_tokens // size * size
        if self._caching and start < stop:
            parent = hashes[-1] if hashes else root_digest(sequence.request)
            tokens = sequence.token_ids(start, stop)
            hashes.extend(block_digests(parent, tokens, size))

    def lookup(self, sequence: Sequence) -> tuple[list[int], ...]:
        """The longest cached prefix of its tokens: a list of blocks a group, no reference taken.

        At least one known token is left to compute: a step needs a row to sample from.
        """
        if not (self._caching and sequence.request.read_prefix_cache):
            return tuple([] for _ in self.windows)
        num_tokens = sequence.num_tokens
        self.hash_tokens(sequence, num_tokens)
        hashes = sequence.hashes[: (num_tokens - 1) // self.block_size]
        tables: list[list[int]] = [[] for _ in self.windows]
        for group, window in enumerate(self.windows):
            if window is None:
                tables[group] = self.pool.find_leading(group, hashes)
                hashes = hashes[: len(tables[group])]
        length, agreed = len(hashes), False
        while not agreed:
            agreed = True
            for group, window in enumerate(self.windows):
                if window is not None:
                    tables[group] = self._trailing(group, hashes[:length])
                    agreed = agreed and len(tables[group]) == length
                    length = len(tables[group])
        return tuple(table[:length] for table in tables)

    def _trailing(self, group: int, hashes: list[bytes]) -> list[int]:
        """Blocks of the longest prefix of hashes at whose end the group's whole window is cached;
        null blocks before that window."""
        end, found = len(hashes), []  # type: int, list[int]
        index = end
        while index > self._first(group, end * self.block_size):
            index -= 1
            block = self.pool.find(group, hashes[index])
            if block is None:
                end, found = index, []
            else:
                found.append(block)
        return [NULL_BLOCK] * (end - len(found)) + found[::-1]

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Adds the full blocks of its first num_tokens, all of them planned, to the cache."""
        first, stop = sequence.num_registered, num_tokens // self.block_size
        if first >= stop or not self._caching:
            return
        self.hash_tokens(sequence, num_tokens)
        digests = sequence.hashes[first:stop]
        for group, table in enumerate(sequence.tables):
            blocks = table[first:stop]
            if self.log is not None:
                self.log += [
                    self._stored(sequence, group, index)
                    for index, block in enumerate(blocks, first)
                    if block != NULL_BLOCK and self.pool.find(group, sequence.hashes[index]) is None
                ]
            self.pool.register(group, blocks, digests)
        sequence.num_registered = stop

    def _stored(self, sequence: Sequence, group: int, index: int) -> BlockStored:
        parent = sequence.hashes[index - 1] if index else None
        tokens = sequence.token_ids(index * self.block_size, (index + 1) * self.block_size)
        return BlockStored(group, sequence.hashes[index], parent, tuple(tokens))

    # -- taking blocks

    def admit(self, sequence: Sequence, hits: tuple[list[int], ...]) -> bool:
        """Gives it blocks for all its known tokens; False, with nothing taken, if too few are free.

        Hits are referenced before new blocks are taken, so that none of them is evicted.

        Args:
            hits: what lookup() just returned.
        """
        pool, position = self.pool, len(hits[0]) * self.block_size
        ends = self._ends(position, sequence.num_tokens)
        revived = sum(
            block != NULL_BLOCK and not pool.references(block) for t in hits for block in t
        )
        if sum(ends) - sum(map(len, hits)) + revived > pool.num_free:
            return False
        for table in hits:
            pool.share(table)
        for table, end in zip(hits, ends, strict=True):
            table += pool.take_many(end - len(table))
        sequence.tables = hits
        sequence.num_registered = position // self.block_size
        return True

    def share(self, child: Sequence, parent: Sequence, num_tokens: int) -> bool:
        """Gives child the parent's blocks of the first num_tokens; False if one that it would read
        was released (it was before the parent's window)."""
        num_blocks = -(-num_tokens // self.block_size)
        for group, table in enumerate(parent.tables):
            if NULL_BLOCK in table[self._first(group, num_tokens) : num_blocks]:
                return False
        child.tables = tuple(table[:num_blocks] for table in parent.tables)
        for table in child.tables:
            self.pool.share(table)
        num_full = num_tokens // self.block_size
        child.hashes = parent.hashes[:num_full]
        child.num_registered = min(parent.num_registered, num_full)
        return True

    def grow(self, sequence: Sequence, position: int, num_tokens: int = 1) -> list[Growth] | None:
        """Prepares the tables to write num_tokens from `position` on; None if too few are free.

        Blocks before the window of these tokens, and so of all later ones, are released first.
        That is safe while earlier steps still run, since steps run in order. A block that other
        tables hold, or that is in the cache, is replaced by a copy (copy-on-write).
        """
        pool = self.pool
        index = position // self.block_size
        end = (position + num_tokens - 1) // self.block_size + 1
        if self.has_windows:
            self._slide(sequence, position)
        wanted = [
            (group, at)
            for group, table in enumerate(sequence.tables)
            for at in range(index, end)
            if at >= len(table) or (at == index and not pool.is_exclusive(table[at]))
        ]
        if len(wanted) > pool.num_free:
            return None
        growth = []
        for group, at in wanted:
            table, block, source = sequence.tables[group], pool.take(), NULL_BLOCK
            if at < len(table):
                source, table[at] = table[at], block
                pool.release((source,))
                source = source if position % self.block_size else NULL_BLOCK
                self.num_copies += source != NULL_BLOCK
            else:
                table.append(block)
            growth.append((group, at, block, source))
        return growth

    def append_blocks(self, sequences: list[Sequence]) -> list[tuple[int, int, int, int]]:
        """grow() for all decodes that begin a block in this step; only if is_simple.

        Generated blocks are registered a few at a time, which costs less than one by one.
        Enough blocks must be free. Returns entries of StepPlan.new_blocks.
        """
        growth = []
        for sequence, block in zip(sequences, self.pool.take_many(len(sequences)), strict=True):
            table = sequence.tables[0]
            index = len(table)
            if self._caching and index - sequence.num_registered >= REGISTER_EVERY:
                self.register(sequence, min(index * self.block_size, sequence.num_tokens))
            growth.append((sequence.slot, 0, index, block))
            table.append(block)
        return growth

    # -- returning blocks

    def _slide(self, sequence: Sequence, position: int) -> None:
        """Releases the blocks that no token from `position` on reads."""
        for group, table in enumerate(sequence.tables):
            past = []
            index = min(self._first(group, position), len(table)) - 1
            while index >= 0 and table[index] != NULL_BLOCK:
                past.append(table[index])
                table[index] = NULL_BLOCK
                index -= 1
            self.pool.release(past)

    def release(self, sequence: Sequence) -> None:
        """Releases all its blocks, the tail to be evicted first. A second call does nothing."""
        for table in sequence.tables:
            self.pool.release(reversed(table))
        sequence.tables = ()
        sequence.num_registered = 0
