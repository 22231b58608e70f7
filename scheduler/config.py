"""The scheduler's settings: frozen, validated, with units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PolicyName = Literal["fcfs", "priority", "longest-prefix"]


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that cache alike and so share one block table.

    Args:
        window: a token attends to itself and the window - 1 tokens before it; None: to all.
    """

    window: int | None = None

    def most_blocks(self, num_blocks: int, block_size: int, max_num_batched_tokens: int) -> int:
        """Blocks of its table of num_blocks that it holds at once, at most: those of a window, of
        a whole step's tokens, and a ragged edge."""
        if self.window is None:
            return num_blocks
        return min(num_blocks, -(-(self.window - 1 + max_num_batched_tokens) // block_size) + 1)


@dataclass(frozen=True, slots=True)
class PreemptionCosts:
    """Estimates by which a preemption is made cheap; subclass it to decide otherwise.

    Args:
        seconds_per_token: to compute a token again.
        seconds_per_block: to copy a block one way between device and host.
    """

    seconds_per_token: float = 20e-6
    seconds_per_block: float = 100e-6

    def prefers_swap(self, num_tokens: int, num_blocks: int) -> bool:
        """Whether copying num_blocks out and back beats computing num_tokens again."""
        return 2 * num_blocks * self.seconds_per_block < num_tokens * self.seconds_per_token


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How one pool of KV blocks is shared.

    Args:
        num_blocks: blocks in the pool, the null block 0 included.
        block_size: tokens a block holds.
        max_num_seqs: most sequences that run at once; the number of slots.
        max_num_batched_tokens: token budget of a step; at least a token (and its drafts) for
            each slot, so that no running decode ever has to sit out a step.
        max_model_len: most tokens of prompt and output together.
        enable_prefix_caching: find the blocks of tokens that were computed before.
        policy: who waits first and who is preempted first.
        long_prefill_token_threshold: most tokens one prompt gets in a step while others wait;
            0 is no limit.
        watermark: share of the pool that an admission leaves free for running sequences to grow
            into (not while nothing runs).
        max_queued_requests, max_queued_tokens: more waiting than this is refused; None: no limit.
        cache_groups: one block table each, over the one pool.
        num_host_blocks: blocks of host memory to swap to; 0: preempt by recompute only.
        preemption_costs: chooses between recompute and swap.
        max_draft_tokens: most draft tokens of one sequence in one step.
        enable_events: keep a log of block events (Scheduler.take_events).
    """

    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    enable_prefix_caching: bool = True
    policy: PolicyName = "fcfs"
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    max_queued_requests: int | None = None
    max_queued_tokens: int | None = None
    cache_groups: tuple[CacheGroup, ...] = (CacheGroup(),)
    num_host_blocks: int = 0
    preemption_costs: PreemptionCosts = PreemptionCosts()
    max_draft_tokens: int = 0
    enable_events: bool = False

    def __post_init__(self) -> None:
        lows = {
            "num_blocks": 2,
            "block_size": 1,
            "max_num_seqs": 1,
            "max_model_len": 2,
            "long_prefill_token_threshold": 0,
            "num_host_blocks": 0,
            "max_draft_tokens": 0,
            "max_queued_requests": 1,
            "max_queued_tokens": 1,
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
        if not 0.0 <= self.watermark < 1.0:
            raise ValueError(f"watermark must be in [0, 1); it was {self.watermark}")
        if not self.cache_groups:
            raise ValueError("cache_groups must name at least one group")
        if any(g.window is not None and g.window < 1 for g in self.cache_groups):
            raise ValueError("a cache group's window must be at least 1 token")
