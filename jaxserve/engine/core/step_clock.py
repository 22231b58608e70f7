"""StepClock: how long steps take, and how long the device waits for the host."""

from __future__ import annotations

import time


class StepClock:
    """Told by the core loop what it sees of the device, which is a lower bound on its idle time:
    a step's end is known when the host looks or waits, not when it happens.

    idle_s: counter of seconds in which the device had nothing to do though there was work.
    step_s: seconds of the step that ended last, from its start, or the end of the one before it
        if that was later, to its results on the host.
    """

    def __init__(self) -> None:
        self.idle_s = 0.0
        self.step_s = 0.0
        self._ended = 0.0
        self._free_since: float | None = None

    def look(self, done: bool) -> None:
        """At the begin of a turn: whether the step in flight is done already."""
        if done and self._free_since is None:
            self._free_since = time.monotonic()

    def started(self) -> float:
        """A step was dispatched; returns when."""
        now = time.monotonic()
        if self._free_since is not None:
            self.idle_s += now - self._free_since
            self._free_since = None
        return now

    def ended(self, started: float, more: bool) -> None:
        """A step's results are on the host; `more` are in flight behind it."""
        now = time.monotonic()
        self.step_s = now - max(started, self._ended)
        self._ended = now
        if not more:
            self._free_since = now

    def rest(self) -> None:
        """There is no work: what follows isn't idle time."""
        self._free_since = None
