"""The scheduler's settings: frozen, validated, with units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PolicyName = Literal["fcfs", "priority", "longest-prefix"]
UNLIMITED = 1 << 62  # blocks or tokens; more than any table can hold


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that need the same KV of a sequence, and so share one block table.

    Args:
        window: a token attends to itself and the window - 1 tokens before it; None: to all.
    """

    window: int | None = None

    def most_blocks(self, num_blocks: int, block_size: int, max_num_batched_tokens: int) -> int:
        """Most blocks that a table of num_blocks entries holds at once.

        With a window these are the blocks of the window and of one whole step's tokens, and one
        more, since neither needs to begin at the start of a block.
        """
        if self.window is None:
            return num_blocks
        return min(num_blocks, -(-(self.window - 1 + max_num_batched_tokens) // block_size) + 1)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How one pool of KV blocks is shared.

    Args:
        num_blocks: blocks in the pool, the null block 0 included.
        block_size: tokens a block holds.
        max_num_seqs: most sequences that run at once; the number of slots.
        max_num_batched_tokens: token budget of a step; at least a token (and its drafts) for
            each slot, so that every running decode gets a token in every step.
        max_model_len: most tokens of prompt and output together.
        enable_prefix_caching: find the blocks of tokens that were computed before.
        policy: the order in which waiting sequences start and running ones are preempted.
        max_queued_requests: most waiting sequences, for Scheduler.check_queue; None: no limit.
        cache_groups: one block table each, over the one pool.
        max_draft_tokens: most draft tokens of one sequence in one step.
        max_draft_step_tokens: most tokens of a step with drafts; None: max_num_batched_tokens.
        max_adapters: most different adapters of the sequences that run; 0 takes none.
        enable_events: keep a log of block events (Scheduler.take_events).

    Raises:
        ValueError: a value is out of range; names it.
    """

    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    enable_prefix_caching: bool = True
    policy: PolicyName = "fcfs"
    max_queued_requests: int | None = None
    cache_groups: tuple[CacheGroup, ...] = (CacheGroup(),)
    max_draft_tokens: int = 0
    max_draft_step_tokens: int | None = None
    max_adapters: int = 0
    enable_events: bool = False

    def __post_init__(self) -> None:
        lows = {
            "num_blocks": 2,
            "block_size": 1,
            "max_num_seqs": 1,
            "max_model_len": 2,
            "max_draft_tokens": 0,
            "max_draft_step_tokens": 1,
            "max_adapters": 0,
            "max_queued_requests": 1,
        }
        for name, low in lows.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"{name} must be at least {low}; it was {value}")
        rows = self.max_num_seqs * (1 + self.max_draft_tokens)
        if self.max_num_batched_tokens < rows:
            raise ValueError(
                f"max_num_batched_tokens must be at least max_num_seqs x (1 + max_draft_tokens) "
                f"= {rows}; it was {self.max_num_batched_tokens}"
            )
        if not self.cache_groups:
            raise ValueError("cache_groups must name at least one group")
        if any(g.window is not None and g.window < 1 for g in self.cache_groups):
            raise ValueError("a cache group's window must be at least 1 token")
