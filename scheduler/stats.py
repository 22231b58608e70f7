"""SchedulerStats: every figure that the server exports about memory and order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A reading. Counters only grow.

    Args:
        running: sequences with a slot.
        waiting: sequences without one, preempted ones included.
        waiting_tokens: known tokens of the waiting.
        blocks_total: usable blocks, the null block not counted.
        blocks_used, blocks_free: their sum is blocks_total; cached blocks that nobody holds are
            free.
        host_blocks_used: blocks of host memory that hold swapped-out sequences.
        prefix_queries: counter of prompt tokens looked up, each sequence once.
        prefix_hits: counter of those found. What a preempted sequence finds again isn't counted.
        preemptions: counter, recompute and swap together.
        swaps: counter of preemptions by swap.
        recomputed_tokens: counter of tokens that preemptions made the device compute again.
    """

    running: int
    waiting: int
    waiting_tokens: int
    blocks_total: int
    blocks_used: int
    blocks_free: int
    host_blocks_used: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    swaps: int
    recomputed_tokens: int
