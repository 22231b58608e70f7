"""Typed refusals. The package stands alone, so its hierarchy starts here; the engine translates."""

from __future__ import annotations


class SchedulerError(Exception):
    """Base of every error the scheduler raises on purpose."""


class RequestTooLongError(SchedulerError, ValueError):
    """The request can never run: it is longer than the model, or than the whole block pool.

    Args:
        limit: most tokens of prompt and output together (Scheduler.max_model_len).
    """

    def __init__(self, message: str, limit: int) -> None:
        super().__init__(message)
        self.limit = limit


class QueueFullError(SchedulerError):
    """Too many requests or tokens wait already: the same request may be taken later.

    Args:
        limit: the limit that was reached, in requests or tokens as the message says.
    """

    def __init__(self, message: str, limit: int) -> None:
        super().__init__(message)
        self.limit = limit
