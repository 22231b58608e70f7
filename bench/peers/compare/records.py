"""Measurements in a file, one line of JSON each, to which several runs may append."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Record:
    """One load on one engine, or why there are no figures of it.

    Args:
        sweep: concurrency or rate.
        value: requests in flight, or new requests a second.
        seed: of the trace; all engines have the same in a round.
        reason: why there are no figures; None if there are.
        commit: of this clone when it was measured.
    """

    engine: str
    sweep: str
    value: float
    seed: int
    figures: dict[str, float] = field(default_factory=dict)
    reason: str | None = None
    commit: str = "unknown"


def append(file: Path, record: Record) -> None:
    with file.open("a") as lines:
        lines.write(json.dumps(asdict(record)) + "\n")


def read(file: Path) -> list[Record]:
    if not file.exists():
        return []
    return [Record(**json.loads(line)) for line in file.read_text().splitlines()]


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure's median, lowest and highest value over the rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:
            return _short(self.median)
        return f"{_short(self.median)} ({_short(self.low)} to {_short(self.high)})"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


class Results:
    """Records, by engine, load and figure."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._records = list(records)

    def engines(self) -> list[str]:
        return list(dict.fromkeys(record.engine for record in self._records))

    def commits(self) -> list[str]:
        """Of the records that have figures."""
        return sorted({record.commit for record in self._records if record.figures})

    def ahead(self, engine: str, sweep: str, value: float, figure: str, higher: bool) -> list[str]:
        """The engines that another is ahead of in every round: its worst round is better than
        their best.

        Args:
            higher: whether a higher figure is better.
        """
        ours = self.spread(engine, sweep, value, figure)
        found = []
        for other in self.engines():
            theirs = self.spread(other, sweep, value, figure)
            if other == engine or ours is None or theirs is None:
                continue
            if ours.low > theirs.high if higher else ours.high < theirs.low:
                found.append(other)
        return found

    def values(self, sweep: str) -> list[float]:
        return sorted({record.value for record in self._records if record.sweep == sweep})

    def spread(self, engine: str, sweep: str, value: float, figure: str) -> Spread | None:
        """None if no round has the figure."""
        found = [
            record.figures[figure]
            for record in self._records
            if (record.engine, record.sweep, record.value) == (engine, sweep, value)
            and figure in record.figures
        ]
        if not found:
            return None
        return Spread(statistics.median(found), min(found), max(found))

    def worst(self, figure: str) -> float:
        """The highest value of a figure in any record; 0 if none has it."""
        return max((record.figures.get(figure, 0.0) for record in self._records), default=0.0)

    def reasons(self, engine: str) -> list[str]:
        """Why figures of the engine are missing: each reason once, without those of loads that a
        later run measured."""
        every = [record for record in self._records if record.engine == engine]
        measured = {(record.sweep, record.value) for record in every if record.reason is None}
        return list(
            dict.fromkeys(
                record.reason
                for record in every
                if record.reason is not None and (record.sweep, record.value) not in measured
            )
        )
