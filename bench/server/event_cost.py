"""What /v1/engine/events costs at 256 requests on a pool of 100,000 blocks, without a device:

    python -m bench.server.event_cost [--seconds 40]

The real scheduler plans steps of 1,024 tokens for a device that would take 20 ms for each, on a
pool in no order; requests arrive as others end. What the engine does for a watch is timed apart
from its steps, and so is what the server process does for 1 and 3 readers, which get events as
often as the endpoint sends them. Times are processor time, so that other work on the machine counts
less. The last line is one flat JSON object.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.common.figures import Figures, print_figures
from jaxserve.engine.core import protocol, watch
from jaxserve.engine.frontend.engine_view import EngineView, Snapshot
from jaxserve.server.api.engine_events import BYTES_PER_S, PERIOD_S
from jaxserve.server.observability.feed_reader import FeedReader
from jaxserve.server.wire.sse import event
from scheduler import Request, Scheduler, SchedulerConfig, StepPlan

STEP_S = 0.02
EPSILON = 1e-6  # what sums of such times are wrong by
RUNNING = 256
BLOCKS = 100_000
STATS = {"running": RUNNING, "blocks_used": BLOCKS, "blocks_total": BLOCKS} | dict.fromkeys(
    "abcdefgh", 1_000_000
)


class Clock:
    """Adds up processor time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def runs(self) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds += time.process_time() - began


class Engine:
    """A scheduler that always has work. Args: watched: whether somebody reads."""

    def __init__(self, watched: bool) -> None:
        config = SchedulerConfig(
            num_blocks=BLOCKS + 1,
            block_size=16,
            max_num_seqs=RUNNING,
            max_num_batched_tokens=1024,
            max_model_len=8192,
        )
        self.scheduler = Scheduler(config)
        self._draws, self._arrived = random.Random(1), 0
        pool = self.scheduler.tables.pool
        blocks = pool.take_many(BLOCKS)
        self._draws.shuffle(blocks)
        pool.release(blocks)
        self.watch = watch.Watch(self.scheduler.watch()) if watched else None
        self.steps, self.recording = Clock(), Clock()

    def step(self) -> None:
        self._arrive()
        with self.steps.runs():
            plan = self.scheduler.schedule()
        assert plan is not None
        if self.watch is not None:
            with self.recording.runs():
                self.watch.planned(plan)
        with self.steps.runs():
            self.scheduler.update(plan, [0] * (len(plan.decode_slots) + len(plan.chunks)))
        if self.watch is not None:
            self._end(self.watch, plan)

    def _end(self, watch: watch.Watch, plan: StepPlan) -> None:
        with self.recording.runs():
            watch.ended((plan,), 1024, STEP_S, 0.001)

    def _arrive(self) -> None:
        stats = self.scheduler.stats()
        for _ in range(RUNNING + 24 - stats.running - stats.waiting):
            prompt = [self._draws.randrange(7) for _ in range(self._draws.randrange(20, 400))]
            name = f"0-request-{self._arrived}"
            self.scheduler.add_request(Request(name, prompt, self._draws.randrange(50, 250)))
            self._arrived += 1


class Readers:
    """The server process's side: so many readers, which get events at the endpoint's pace."""

    def __init__(self, count: int) -> None:
        self._view = EngineView(BLOCKS + 1)
        self._readers = [FeedReader(self._view) for _ in range(count)]
        self._due = [0.0] * count
        self.work = Clock()
        self.events = self.bytes = self.largest = 0

    def take(self, data: bytes, now_s: float) -> None:
        with self.work.runs():
            snapshot = protocol.decode_to_client(data)
            assert isinstance(snapshot, Snapshot)
            self._view.take(snapshot.changes)
            for nth, reader in enumerate(self._readers):
                reader.note(snapshot)
                if self._due[nth] <= now_s + EPSILON:
                    size = len(event(reader.event() | {"stats": STATS}))
                    self._due[nth] = now_s + max(PERIOD_S, size / BYTES_PER_S)
                    self.events, self.bytes = self.events + 1, self.bytes + size
                    self.largest = max(self.largest, size)


def measure(seconds: float) -> Figures:
    most_share = watch.MOST_SHARE
    watch.PERIOD_S, watch.MOST_SHARE = 0.0, math.inf  # the time here is made up
    alone, watched = Engine(False), Engine(True)
    several = {count: Readers(count) for count in (1, 3)}
    snapshots, due_s = 0, 0.0
    for number in range(round(seconds / STEP_S)):
        now_s = number * STEP_S
        alone.step()
        watched.step()
        if now_s + EPSILON < due_s or watched.watch is None:
            continue
        taking = watched.recording.seconds
        with watched.recording.runs():
            snapshot = watched.watch.take()
        pause_s = (watched.recording.seconds - taking) / most_share
        due_s = now_s + max(PERIOD_S, min(pause_s, watch.LONGEST_S))
        assert snapshot is not None
        with watched.recording.runs():
            data = protocol.encode(snapshot)
        snapshots += 1
        for readers in several.values():
            readers.take(data, now_s)
    steps = round(seconds / STEP_S)

    def per_step(clock: Clock) -> float:
        return 1000 * clock.seconds / steps

    recording_ms = per_step(watched.recording) + per_step(watched.steps) - per_step(alone.steps)
    figures: Figures = {
        "blocks": BLOCKS,
        "requests": watched.scheduler.stats().running,
        "step_ms": 1000 * STEP_S,
        "scheduler_ms_per_step_0_readers": round(per_step(alone.steps), 4),
        "scheduler_ms_per_step_watched": round(per_step(watched.steps), 4),
        "recording_ms_per_step": round(recording_ms, 4),
        "recording_share_of_step": round(recording_ms / (1000 * STEP_S), 5),
        "snapshots_per_s": round(snapshots / seconds, 2),
    }
    for count, readers in several.items():
        figures[f"server_ms_per_step_{count}_readers"] = round(per_step(readers.work), 4)
        figures[f"events_per_s_per_reader_{count}_readers"] = round(
            readers.events / count / seconds, 2
        )
        figures[f"kB_per_s_per_reader_{count}_readers"] = round(
            readers.bytes / 1000 / count / seconds, 2
        )
    figures["largest_event_kB"] = round(several[1].largest / 1000, 2)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40.0, help="of the engine's time")
    print_figures(measure(parser.parse_args().seconds))


if __name__ == "__main__":
    main()
