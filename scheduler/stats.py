"""SchedulerStats: the figures about queue, memory and prefix cache that the server exports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The figures at one moment. Counters never decrease.

    Args:
        running: sequences with a slot.
        waiting: sequences without one, preempted ones included.
        blocks_total: usable blocks, the null block not counted.
        blocks_used, blocks_free: their sum is blocks_total; cached blocks that no sequence holds
            are free.
        prefix_queries: counter of prompt tokens looked up, each sequence once.
        prefix_hits: counter of those found. What a preempted sequence finds again isn't counted.
        preemptions: counter.
        recomputed_tokens: counter of tokens that preemptions made the device compute again.
        copies: counter of blocks that were copied because others hold them too (copy-on-write).
        evictions: counter of blocks whose cached content was forgotten, to take them for other.
    """

    running: int
    waiting: int
    blocks_total: int
    blocks_used: int
    blocks_free: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    recomputed_tokens: int
    copies: int = 0
    evictions: int = 0
