"""How much of the processor other programs used while a figure was measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


class Others:
    """The share of all cores that other programs use, from when this object is made.

    Args:
        ours: gives the ids of processes that, like this one, don't count as other programs; called
            at the start and at the end.
    """

    def __init__(self, ours: Callable[[], Iterable[int]]) -> None:
        self._ours = ours
        self._began, self._busy, self._own = time.perf_counter(), _busy_s(), self._own_s()

    def share(self) -> float:
        """From 0 to 1."""
        cores_s = (time.perf_counter() - self._began) * (os.cpu_count() or 1)
        others_s = (_busy_s() - self._busy) - (self._own_s() - self._own)
        return max(0.0, others_s / cores_s)

    def _own_s(self) -> float:
        return sum(_process_s(pid) for pid in (os.getpid(), *self._ours()))


def _busy_s() -> float:
    user, nice, system, _, _, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / TICKS


def _process_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS  # utime, stime
