"""The scheduler's errors. The package imports nothing of ours; the engine translates them."""

from __future__ import annotations


class SchedulerError(Exception):
    """Base of every error that the scheduler raises on purpose."""


class RequestTooLongError(SchedulerError, ValueError):
    """The request can never run: it is longer than the model, or than the whole block pool.

    Args:
        limit: most tokens of prompt and output together (Scheduler.max_model_len).
    """

    def __init__(self, message: str, limit: int) -> None:
        super().__init__(message)
        self.limit = limit


class QueueFullError(SchedulerError):
    """Too many requests wait already: the same request may be accepted later.

    Args:
        limit: most requests that may wait.
    """

    def __init__(self, message: str, limit: int) -> None:
        super().__init__(message)
        self.limit = limit
