"""Allocators that reserve all of a request's KV memory at once, in place of block tables.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
2023, section 6.1, compare with three versions of Orca (Yu et al., 2022), which they take to use a
buddy allocator, and with FasterTransformer. The scheduler is unchanged but for its tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scheduler import Scheduler, SchedulerConfig, Sequence
from scheduler.blocks.tables import BlockTables, Growth


class BuddyAllocator:
    """Runs of 2^k units out of `size` units (Knowlton 1965); size need not be a power of two."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free: list[set[int]] = [set() for _ in range(size.bit_length())]
        self._order: dict[int, int] = {}  # of each taken run, by its start
        start = 0
        for order in reversed(range(size.bit_length())):
            if size >> order & 1:
                self._free[order].add(start)
                start += 1 << order

    @property
    def num_free(self) -> int:
        return sum(len(starts) << order for order, starts in enumerate(self._free))

    @property
    def largest(self) -> int:
        """Units of the largest free run."""
        return max((1 << order for order, starts in enumerate(self._free) if starts), default=0)

    def take(self, count: int) -> int | None:
        """Takes a run of at least `count` units and returns its start, or None if there is none. It
        splits the smallest free run that fits, the lowest of those."""
        order = found = (count - 1).bit_length()
        while found < len(self._free) and not self._free[found]:
            found += 1
        if found >= len(self._free):
            return None
        start = min(self._free[found])
        self._free[found].remove(start)
        while found > order:
            found -= 1
            self._free[found].add(start + (1 << found))
        self._order[start] = order
        return start

    def release(self, start: int) -> None:
        """Frees a run, and merges it with its buddy as long as that is free."""
        order = self._order.pop(start)
        while (buddy := start ^ (1 << order)) in self._free[order]:
            self._free[order].remove(buddy)
            start, order = min(start, buddy), order + 1
        self._free[order].add(start)


class ReservingTables(BlockTables):
    """Gives a sequence its whole reservation, one run of blocks, when it is admitted.

    Args:
        reserve: tokens to reserve for a sequence, prompt included.
        whole_batches: admit nothing from the first token of a batch until the batch has finished.
    """

    def __init__(
        self, config: SchedulerConfig, reserve: Callable[[Sequence], int], whole_batches: bool
    ) -> None:
        super().__init__(config)
        assert self.windows == (None,)
        assert not config.enable_prefix_caching
        self.is_simple = False  # a table is complete from the start
        self.reserve, self._whole_batches = reserve, whole_batches
        self.buddy = BuddyAllocator(config.num_blocks - 1)
        self._held: dict[Sequence, int] = {}  # start of each one's run

    def blocks_for(self, sequence: Sequence) -> int:
        return -(-self.reserve(sequence) // self.block_size)

    def admit(self, sequence: Sequence, hits: tuple[list[int], ...]) -> bool:
        if self._whole_batches and any(held.output_token_ids for held in self._held):
            return False
        count = self.blocks_for(sequence)
        start = self.buddy.take(count)
        if start is None:
            return False
        self._held[sequence] = start
        sequence.tables = ([*range(start + 1, start + 1 + count)],)  # after the null block
        return True

    def grow(self, sequence: Sequence, position: int, num_tokens: int = 1) -> list[Growth]:
        return []

    def release(self, sequence: Sequence) -> None:
        if sequence in self._held:
            self.buddy.release(self._held.pop(sequence))
        sequence.tables = ()


@dataclass(frozen=True, slots=True)
class System:
    """An allocator as the paper names it.

    Args:
        reserve: (prompt tokens, output tokens, longest sequence) to tokens reserved; None: paged.
        whole_batches: a batch runs until all of it has finished, and is answered then.
    """

    name: str
    reserve: Callable[[int, int, int], int] | None = None
    whole_batches: bool = False

    def install(self, scheduler: Scheduler) -> None:
        """Replaces the tables of a scheduler that has no requests."""
        config, reserve, longest = scheduler.config, self.reserve, scheduler.max_model_len
        if reserve is None:
            scheduler.tables = BlockTables(config)
        else:
            scheduler.tables = ReservingTables(
                config,
                lambda s: min(longest, reserve(s.num_prompt, s.limit, longest)),
                self.whole_batches,
            )


def _pow2(prompt: int, output: int, longest: int) -> int:
    """The paper's example: for 25 output tokens, 32."""
    return prompt + (1 << (output - 1).bit_length())


PAGED = System("paged")
ORACLE = System("Orca (Oracle)", lambda prompt, output, longest: prompt + output)
POW2 = System("Orca (Pow2)", _pow2)
MAX = System("Orca (Max)", lambda prompt, output, longest: longest)
FASTER_TRANSFORMER = System("FasterTransformer", MAX.reserve, whole_batches=True)
SYSTEMS = (PAGED, ORACLE, POW2, MAX, FASTER_TRANSFORMER)
