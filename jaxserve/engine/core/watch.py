"""Watch: collects what the engine does, for clients that asked for it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from jaxserve.engine.core.protocol import Snapshot, StepRecord
from scheduler import Changes, Recorder, StepPlan

PERIOD_S = 0.1  # between snapshots, or longer, so that taking them needs no more than
MOST_SHARE = 0.005  # of the engine's time; but never longer than
LONGEST_S = 1.0
MOST_STEPS = 200  # that a snapshot reports, the last ones


class Watch:
    """Exists only while a client watches.

    settled: all has been told, as of the last look.

    Args:
        recorder: of the scheduler; closed with the watch.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._prompts: dict[int, list[tuple[int, int]]] = {}  # by step in flight
        self._steps: list[StepRecord] = []
        self._due = 0.0
        self.settled = False

    def close(self) -> None:
        self._recorder.close()

    def planned(self, plan: StepPlan) -> None:
        """A step was planned just now."""
        if plan.chunks:
            self._prompts[plan.step] = self._recorder.prompts(plan)

    def ended(self, plans: Sequence[StepPlan], padded: int, device_s: float, host_s: float) -> None:
        """The steps of one dispatch have ended. Args: as StepRecord's, of all of them together."""
        share = 1 / len(plans)
        for plan in plans:
            prompts = self._prompts.pop(plan.step, [])
            decodes = plan.num_tokens - sum(len(chunk.token_ids) for chunk in plan.chunks)
            self._steps.append(
                StepRecord(
                    plan.step,
                    decodes,
                    prompts,
                    padded,
                    device_s * share,
                    host_s * share,
                    list(plan.copies),
                )
            )
        del self._steps[:-MOST_STEPS]

    def lost(self) -> None:
        """The steps in flight are lost."""
        self._prompts.clear()

    def take(self) -> Snapshot | None:
        """What has changed; None if nothing has, or the last look was too short a time ago."""
        now = time.monotonic()
        if now < self._due:
            self.settled = False
            return None
        began = time.thread_time()  # not of the clock: others may have had the processor
        changes = self._recorder.take()
        pause_s = (time.thread_time() - began) / MOST_SHARE
        self._due = now + max(PERIOD_S, min(pause_s, LONGEST_S))
        self.settled = not (self._steps or _tells(changes))
        if self.settled:
            return None
        steps, self._steps = self._steps, []
        return Snapshot(changes, steps)


def _tells(changes: Changes) -> bool:
    return bool(
        changes.first
        or changes.blocks
        or changes.started
        or changes.ended
        or changes.tables
        or changes.progress
        or changes.waiting is not None
    )
