"""BlockTables: which blocks each sequence holds, in every cache group, over one pool."""

from __future__ import annotations

from scheduler.blocks import NULL_BLOCK, BlockPool
from scheduler.config import SchedulerConfig
from scheduler.hashing import block_digests, root_digest
from scheduler.request import Sequence

Growth = tuple[int, int, int]  # (group, index in the table, block)


class BlockTables:
    """Gives blocks to sequences and takes them back; the only owner of the pool."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.block_size = config.block_size
        self.pool = BlockPool(config.num_blocks, len(config.cache_groups))
        self.windows = tuple(group.window for group in config.cache_groups)
        self.has_windows = any(self.windows)
        self._caching = config.enable_prefix_caching
        # Most blocks a group needs at once: its window, a whole step's tokens, and a ragged edge.
        self._spans = tuple(
            None
            if window is None
            else -(-(window - 1 + config.max_num_batched_tokens) // self.block_size) + 1
            for window in self.windows
        )

    # -- sizes

    def _end(self, group: int, first: int, num_blocks: int) -> int:
        """Where the table of a sequence of num_blocks may end when it is needed from `first`."""
        span = self._spans[group]
        return num_blocks if span is None else min(num_blocks, first + span)

    def _first(self, group: int, position: int) -> int:
        """Index of the first block that a token at `position` reads."""
        window = self.windows[group]
        return 0 if window is None else max(0, position - window + 1) // self.block_size

    def longest(self) -> int:
        """Most tokens that one sequence alone can hold in the pool."""
        low, high = 0, self.pool.num_blocks * len(self.windows)
        if all(self.windows) and self._size(high) <= self.pool.num_blocks - 1:
            return 1 << 62
        while low < high:
            middle = (low + high + 1) // 2
            if self._size(middle) <= self.pool.num_blocks - 1:
                low = middle
            else:
                high = middle - 1
        return low * self.block_size

    def _size(self, num_blocks: int) -> int:
        return sum(self._end(group, 0, num_blocks) for group in range(len(self.windows)))

    # -- admission

    def hash_tokens(self, sequence: Sequence, num_tokens: int) -> None:
        """Brings sequence.hashes up to the full blocks of its first num_tokens."""
        hashes, size = sequence.hashes, self.block_size
        start, stop = len(hashes) * size, num_tokens // size * size
        if self._caching and start < stop:
            parent = hashes[-1] if hashes else root_digest(sequence.request)
            tokens = sequence.token_ids(start, stop)
            hashes.extend(block_digests(sequence.request, parent, tokens, start, size))

    def lookup(self, sequence: Sequence, num_tokens: int) -> tuple[list[int], ...]:
        """The cached blocks that its first tokens begin with, a table a group; not yet held.

        At least one of the num_tokens is left to compute.
        """
        if not (self._caching and sequence.request.read_prefix_cache):
            return tuple([] for _ in self.windows)
        self.hash_tokens(sequence, num_tokens)
        hashes = sequence.hashes[: (num_tokens - 1) // self.block_size]
        tables: list[list[int]] = [[] for _ in self.windows]
        for group, window in enumerate(self.windows):
            if window is None:
                tables[group] = self._leading(group, hashes)
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

    def _leading(self, group: int, hashes: list[bytes]) -> list[int]:
        table = []
        for digest in hashes:
            block = self.pool.find(group, digest)
            if block is None:
                break
            table.append(block)
        return table

    def _trailing(self, group: int, hashes: list[bytes]) -> list[int]:
        """The longest start of hashes at whose end the group's whole window is cached."""
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

    def admit(
        self, sequence: Sequence, num_tokens: int, hits: tuple[list[int], ...], spare: int
    ) -> bool:
        """Gives it blocks for num_tokens, hits first; False if `spare` wouldn't stay free."""
        pool, num_blocks = self.pool, -(-num_tokens // self.block_size)
        position = len(hits[0]) * self.block_size
        ends = [
            self._end(group, self._first(group, position), num_blocks)
            for group in range(len(self.windows))
        ]
        fresh = sum(ends) - sum(map(len, hits))
        revived = sum(
            1 for table in hits for block in table if block and not pool.references(block)
        )
        if fresh + revived + spare > pool.num_free:
            return False
        for table in hits:
            for block in table:
                if block != NULL_BLOCK:
                    pool.share(block)
        for table, end in zip(hits, ends, strict=True):
            table.extend([pool.take() for _ in range(end - len(table))])
        sequence.tables = hits
        sequence.num_registered = position // self.block_size
        return True

    # -- growth

    def grow(self, sequence: Sequence, position: int, num_tokens: int = 1) -> list[Growth] | None:
        """Readies the tables for num_tokens from `position` on; None if blocks are missing.

        Blocks that the tokens, and so all later ones, don't read are let go first. That is safe
        while earlier steps still run, since steps run in order.
        """
        pool, growth = self.pool, []  # type: BlockPool, list[Growth]
        end = (position + num_tokens - 1) // self.block_size + 1
        if self.has_windows:
            self._slide(sequence, position)
        if sum(max(0, end - len(table)) for table in sequence.tables) > pool.num_free:
            return None
        for group, table in enumerate(sequence.tables):
            for index in range(len(table), end):
                block = pool.take()
                table.append(block)
                growth.append((group, index, block))
        return growth

    def _slide(self, sequence: Sequence, position: int) -> None:
        for group, table in enumerate(sequence.tables):
            past = []
            index = min(self._first(group, position), len(table)) - 1
            while index >= 0 and table[index] != NULL_BLOCK:
                past.append(table[index])
                table[index] = NULL_BLOCK
                index -= 1
            self.pool.release(past)

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Makes the full blocks of its first num_tokens, all planned, findable."""
        if not self._caching:
            return
        stop = num_tokens // self.block_size
        if sequence.num_registered < stop:
            self.hash_tokens(sequence, num_tokens)
            for index in range(sequence.num_registered, stop):
                for group, table in enumerate(sequence.tables):
                    if table[index] != NULL_BLOCK:
                        self.pool.register(group, table[index], sequence.hashes[index])
            sequence.num_registered = stop

    def release(self, sequence: Sequence) -> None:
        """Takes all its blocks back, the tail to be reused first. Does nothing the second time."""
        for table in sequence.tables:
            self.pool.release(reversed(table))
        sequence.tables = ()
        sequence.num_registered = 0
