"""Cost models: how long a step takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from jaxserve.engine.device.buckets import Bucket, BucketTable
from scheduler import Sequence, StepPlan


@dataclass(frozen=True, slots=True)
class Load:
    """The amounts of work in a step on which its time depends.

    Args:
        rows: decode rows and chunks.
        tokens: computed, of decodes and chunks.
        context: tokens whose KV decode rows read.
        chunks: (first position, tokens) each.
    """

    rows: int
    tokens: int
    context: int
    chunks: tuple[tuple[int, int], ...] = ()

    @property
    def attended(self) -> int:
        """Pairs of a chunk's token and a token to which it attends."""
        return sum(count * start + count * (count + 1) // 2 for start, count in self.chunks)


class Loads:
    """Derives the load of each plan of one scheduler, given all plans in order."""

    def __init__(self) -> None:
        self._occupants: dict[int, Sequence] = {}
        self._slots: tuple[int, ...] = ()
        self._context = 0

    def read(self, plan: StepPlan) -> Load:
        occupants = self._occupants
        for start in plan.starts:
            occupants[start.slot] = start.sequence
        if plan.decode_slots is self._slots:  # the same rows, one token later
            self._context += len(self._slots)
        else:
            self._slots = plan.decode_slots
            self._context = sum([occupants[slot].num_tokens for slot in self._slots])
        return Load(
            len(plan.decode_slots) + len(plan.chunks),
            plan.num_tokens,
            self._context,
            tuple((chunk.start, len(chunk.token_ids)) for chunk in plan.chunks),
        )


class Cost(Protocol):
    """A machine with a model on it."""

    def seconds(self, load: Load, paged: bool) -> float:
        """Time of one step.

        Args:
            paged: whether KV is read through block tables.
        """


@dataclass(frozen=True, slots=True)
class Roofline:
    """Matmuls at the limit of reading the weights or of arithmetic, whichever takes longer, and
    attention after them: decodes at the limit of reading KV, chunks at that of arithmetic.

    Args:
        kv_bytes: of a token, in all layers.
        pair_flops: of attention between one token and one to which it attends, in all layers.
        read: bytes a second.
        compute: FLOP/s.
        attained: share of both limits that is reached. It scales all times alike, and so both axes
            of the latency figure; ratios between systems don't depend on it.
        paged_read: how much longer attention takes to read KV through block tables.
    """

    weights: float
    kv_bytes: float
    pair_flops: float
    read: float
    compute: float
    attained: float
    paged_read: float

    def seconds(self, load: Load, paged: bool) -> float:
        parameters = self.weights / 2  # two bytes each, two FLOPs a token
        matmuls = max(self.weights / self.read, 2 * parameters * load.tokens / self.compute)
        decodes = load.context * self.kv_bytes / self.read * (self.paged_read if paged else 1.0)
        chunks = load.attended * self.pair_flops / self.compute
        return (matmuls + decodes + chunks) / self.attained


# The paper's table 1 and section 7.1 (its attention kernel is 20 to 26 % slower than
# FasterTransformer's); the GPU's data sheet. 40 layers, hidden size 5,120, 2 bytes a number.
OPT_13B_A100 = Roofline(
    weights=26e9,
    kv_bytes=2 * 40 * 5120 * 2,
    pair_flops=4 * 40 * 5120,
    read=1.555e12,
    compute=312e12,
    attained=0.6,
    paged_read=1.23,
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Fitted to steps of the real engine: for each bucket a constant, one time for a token of
    decode context and one for an attended pair in all buckets.

    Args:
        constants: seconds by bucket.
    """

    table: BucketTable
    constants: dict[Bucket, float]
    per_context: float
    per_pair: float

    def bucket(self, load: Load) -> Bucket:
        return self.table.pick(load.tokens, load.rows)

    def seconds(self, load: Load, paged: bool) -> float:
        constant = self.constants[self.bucket(load)]
        return constant + self.per_context * load.context + self.per_pair * load.attended

    @classmethod
    def fit(cls, table: BucketTable, steps: list[tuple[Load, float]]) -> Measured:
        """Least squares of relative errors; a bucket that no step used is taken to cost what the
        next larger one does."""
        blank = cls(table, {}, 0.0, 0.0)
        buckets = list(table.all)
        rows = np.zeros((len(steps), len(buckets) + 2))
        for row, (load, seconds) in zip(rows, steps, strict=True):
            row[buckets.index(blank.bucket(load))] = 1 / seconds
            row[-2:] = load.context / seconds, load.attended / seconds
        used = rows.any(axis=0)
        solution = np.zeros(len(buckets) + 2)
        solution[used] = np.linalg.lstsq(rows[:, used], np.ones(len(steps)), rcond=None)[0]
        constants, larger = {}, 0.0
        for kind in (table.decode, table.mixed):
            for bucket in reversed(kind):
                own = float(solution[buckets.index(bucket)])
                larger = constants[bucket] = own if used[buckets.index(bucket)] else larger
        return cls(table, constants, float(solution[-2]), float(solution[-1]))

    def error(self, steps: list[tuple[Load, float]]) -> tuple[float, float]:
        """Median absolute relative error of a step, and the relative error of all steps' sum."""
        modelled = np.array([self.seconds(load, True) for load, _ in steps])
        real = np.array([seconds for _, seconds in steps])
        return float(np.median(abs(modelled / real - 1))), float(modelled.sum() / real.sum() - 1)
