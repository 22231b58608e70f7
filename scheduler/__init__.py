"""Requests, block pool, prefix cache and step plans: pure Python, no model, no device."""

from scheduler.arrival_checks import longest_sequence
from scheduler.blocks.events import BlockEvent, BlockRemoved, BlockStored, CacheCleared
from scheduler.config import CacheGroup, SchedulerConfig
from scheduler.errors import QueueFullError, RequestTooLongError, SchedulerError
from scheduler.plan import Chunk, Draft, SlotStart, StepPlan, StepResult
from scheduler.recorder import (
    ChangedTable,
    Changes,
    EndedSequence,
    Progress,
    Recorder,
    StartedSequence,
    WaitingSequence,
)
from scheduler.request import FinishReason, Request, Sequence
from scheduler.scheduler import Scheduler
from scheduler.stats import SchedulerStats

__all__ = [
    "BlockEvent",
    "BlockRemoved",
    "BlockStored",
    "CacheCleared",
    "CacheGroup",
    "ChangedTable",
    "Changes",
    "Chunk",
    "Draft",
    "EndedSequence",
    "FinishReason",
    "Progress",
    "QueueFullError",
    "Recorder",
    "Request",
    "RequestTooLongError",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerError",
    "SchedulerStats",
    "Sequence",
    "SlotStart",
    "StartedSequence",
    "StepPlan",
    "StepResult",
    "WaitingSequence",
    "longest_sequence",
]
