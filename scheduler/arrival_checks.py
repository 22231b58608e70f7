"""What is checked when a request arrives: that it can run at all, and that the queue has room."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.config import UNLIMITED, CacheGroup
from scheduler.errors import QueueFullError, RequestTooLongError, SchedulerError
from scheduler.request import Request


def longest_sequence(
    num_blocks: int, block_size: int, groups: Sequence[CacheGroup], max_num_batched_tokens: int
) -> int:
    """Most tokens that one sequence alone can hold in a pool of num_blocks, the null block
    included."""

    def fits(length: int) -> bool:
        needed = [g.most_blocks(length, block_size, max_num_batched_tokens) for g in groups]
        return sum(needed) < num_blocks

    if fits(UNLIMITED):
        return UNLIMITED
    low, high = 0, num_blocks - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low * block_size


def check_length(request: Request, configured: int, limit: int) -> None:
    """Refuses a request that can never run.

    Args:
        configured: SchedulerConfig.max_model_len.
        limit: most tokens of prompt and output: `configured` or, if smaller, what the pool holds.

    Raises:
        RequestTooLongError: the prompt exceeds the limit.
        SchedulerError: the prompt is empty, or max_tokens or n is below 1.
    """
    length = len(request.prompt_token_ids)
    if length == 0:
        raise SchedulerError("a prompt needs at least one token")
    if request.max_tokens < 1 or request.n < 1:
        raise SchedulerError("max_tokens and n must be at least 1")
    if length > limit:  # a prompt that fills it has one output token, whose KV is never computed
        why = "" if limit == configured else ", all that the pool holds"
        raise RequestTooLongError(
            f"a prompt of {length} tokens exceeds the limit of {limit} tokens{why}",
            limit,
        )


def check_queue(num_waiting: int, most: int | None) -> None:
    """Refuses a request while `most` wait already.

    Raises:
        QueueFullError: the queue is full.
    """
    if most is not None and num_waiting >= most:
        raise QueueFullError(f"{most} requests wait already", most)
