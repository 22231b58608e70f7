"""How the KV memory is used: the parts of the PagedAttention paper's figure 2, in tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass

from bench.paper.allocators import ReservingTables
from scheduler import Scheduler, Sequence


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the pool; the parts add up to it.

    Args:
        useful: positions whose KV has been computed.
        reserved: held for later tokens of the same request.
        internal: held for tokens that the request will never have.
        external: lost to the allocator: rounding to its run sizes, and free memory that the first
            in the queue would fit into if it were in one piece.
        free: the rest.
    """

    useful: float = 0.0
    reserved: float = 0.0
    internal: float = 0.0
    external: float = 0.0
    free: float = 0.0

    def plus(self, other: Usage, weight: float = 1.0) -> Usage:
        return Usage(*(a + weight * b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def total(self) -> float:
        return sum(astuple(self))

    @property
    def wasted_of_held(self) -> float:
        """Share of what requests hold that holds no KV."""
        held = self.total - self.free
        return 1 - self.useful / held if held else 0.0


def usage(scheduler: Scheduler, running: Iterable[Sequence], head: Sequence | None) -> Usage:
    """The usage of the pool between two steps.

    Args:
        running: the sequences that hold memory; they share no blocks.
        head: the first in the queue, which lacks the memory to be admitted.
    """
    tables = scheduler.tables
    size, capacity = tables.block_size, (scheduler.config.num_blocks - 1) * tables.block_size
    useful = reserved = internal = 0
    for sequence in running:
        asked = len(sequence.tables[0]) * size
        if isinstance(tables, ReservingTables):
            asked = tables.reserve(sequence)
        # The KV of the token sampled last is not computed yet; that of the final token never is.
        computed = sequence.num_tokens - 1 if sequence.output_token_ids else sequence.num_computed
        computed = min(computed, asked)
        final = min(asked, sequence.num_prompt + sequence.limit - 1)
        useful += computed
        reserved += final - computed
        internal += asked - final
    if isinstance(tables, ReservingTables):
        free = tables.buddy.num_free * size
        external = capacity - free - useful - reserved - internal
        if head is not None and tables.blocks_for(head) * size <= free:
            free, external = 0, external + free
    else:
        free, external = tables.pool.num_free * size, 0
    return Usage(useful, reserved, internal, external, free)
