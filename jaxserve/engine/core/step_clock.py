"""StepClock: how long steps take, and how long the device waits for the host."""

from __future__ import annotations

import time


class StepClock:
    """Measures from what the core loop observes of the device. Its idle time is a lower bound: the
    loop learns of a step's end when it looks or waits, not when the step ends.

    idle_s: counter of seconds in which the device had nothing to compute though there was work.
    step_s: seconds of the step that ended last: from its dispatch, or from the end of the step
        before if that was later, until its results were on the host.
    """

    def __init__(self) -> None:
        self.idle_s = 0.0
        self.step_s = 0.0
        self._ended_at = 0.0
        self._idle_since: float | None = None

    def observe(self, is_done: bool) -> None:
        """The loop has looked whether the device has finished all that is dispatched."""
        if is_done and self._idle_since is None:
            self._idle_since = time.monotonic()

    def dispatched(self) -> float:
        """The loop has dispatched a step; returns when, by time.monotonic()."""
        now = time.monotonic()
        if self._idle_since is not None:
            self.idle_s += now - self._idle_since
            self._idle_since = None
        return now

    def ended(self, dispatched_at: float, has_more: bool) -> None:
        """A step's results are on the host.

        Args:
            dispatched_at: when it was dispatched.
            has_more: further steps are dispatched.
        """
        now = time.monotonic()
        self.step_s = now - max(dispatched_at, self._ended_at)
        self._ended_at = now
        if not has_more:
            self._idle_since = now

    def pause(self) -> None:
        """There is no work: the time until the next dispatch isn't idle time."""
        self._idle_since = None
