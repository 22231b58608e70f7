"""Requests, block pool, prefix cache and step plans: pure Python, no model, no device."""

from scheduler.config import CacheGroup, PreemptionCosts, SchedulerConfig
from scheduler.errors import QueueFullError, RequestTooLongError, SchedulerError
from scheduler.events import BlockEvent, BlockRemoved, BlockStored, CacheCleared
from scheduler.limits import longest_sequence
from scheduler.plan import Chunk, Draft, SlotStart, StepPlan, StepResult
from scheduler.request import FinishReason, MediaSpan, Request, Sequence
from scheduler.scheduler import Scheduler
from scheduler.stats import SchedulerStats

__all__ = [
    "BlockEvent",
    "BlockRemoved",
    "BlockStored",
    "CacheCleared",
    "CacheGroup",
    "Chunk",
    "Draft",
    "FinishReason",
    "MediaSpan",
    "PreemptionCosts",
    "QueueFullError",
    "Request",
    "RequestTooLongError",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerError",
    "SchedulerStats",
    "Sequence",
    "SlotStart",
    "StepPlan",
    "StepResult",
    "longest_sequence",
]
