"""SamplingState: writes the device's sampling tables when a sequence gets a slot, and its masks
before each draw."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.engine.device.adapters.slot_writer import HostAdapter
from jaxserve.errors import EngineError, JaxserveError
from jaxserve.sampling.grammar import StepBudget
from jaxserve.sampling.logit_processors import SamplingTables, bias_row, counts_row
from jaxserve.sampling.masks import MaskRules, TokenMask
from jaxserve.sampling.params import SamplingParams
from jaxserve.sampling.row_settings import is_penalised
from scheduler import Request, Sequence, SlotStart

# Rows of each table that one call writes.
COUNTS_ROWS, MASK_ROWS, BIAS_ROWS = 1, 16, 4
MEANWHILE_S = 0.05  # between calls of `meanwhile`, which takes about a millisecond


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """What sampling needs of a request: Request.payload of the scheduler.

    Args:
        masks: rules for its token masks; None if any token may always be drawn.
        pool: the request is for the prompt's embedding, not for text.
        prediction: tokens that the output may repeat.
        adapter: the request's, in host memory.
    """

    params: SamplingParams
    masks: MaskRules | None = None
    pool: bool = False
    prediction: tuple[int, ...] = ()
    adapter: HostAdapter | None = None


def settled_until(request: Request) -> int:
    """The first output position at which a token may end the output, or may be masked by what the
    tokens before it are. Before that position only the number of tokens matters."""
    payload: SamplingRequest = request.payload
    if payload.params.stop or (payload.masks is not None and payload.masks.needs_each_token):
        return 0
    return request.min_tokens if request.stop_token_ids else request.max_tokens


class SamplingState:
    """Writes rows of the tables. A request without masks, penalties and biases needs none.

    Args:
        tables: the device's tables, as the step was compiled for.
    """

    def __init__(self, tables: SamplingTables) -> None:
        slots, self._vocab = tables.counts.shape
        self._count_rows = _Writer(tables.counts, COUNTS_ROWS, slots - 1)
        self._mask_rows = _Writer(tables.masks, MASK_ROWS, slots - 1)
        self._bias_rows = _Writer(tables.bias, BIAS_ROWS, slots - 1)
        self._masks: dict[int, tuple[Sequence, TokenMask]] = {}  # by slot
        self._unwritten: set[int] = set()  # slots whose first mask isn't written yet
        self.failed: list[
            tuple[Sequence, JaxserveError]
        ] = []  # sequences that can't go on, and why

    def start(self, start: SlotStart) -> None:
        """Sets up a slot for its new occupant."""
        try:
            self._occupy(start)
        except Exception as error:  # whatever it is, the other requests go on
            reason = EngineError(f"its sampling couldn't be set up: {error!r}")
            self.failed.append((start.sequence, reason))

    def _occupy(self, start: SlotStart) -> None:
        sequence, slot = start.sequence, start.slot
        request: SamplingRequest = sequence.request.payload
        self._masks.pop(slot, None)
        if request.masks is not None:
            self._masks[slot] = (sequence, TokenMask(request.masks))
            self._unwritten.add(slot)
        if is_penalised(request.params):
            prompt, outputs = sequence.request.prompt_token_ids, sequence.output_token_ids
            self._count_rows.add(slot, counts_row(prompt, outputs, self._vocab))
        if request.params.logit_bias:
            self._bias_rows.add(slot, bias_row(request.params.logit_bias, self._vocab))

    @property
    def has_masks(self) -> bool:
        """Whether any sequence in a slot has masks."""
        return bool(self._masks)

    def awaits_tokens(self, slots: Iterable[int]) -> bool:
        """Whether the mask of one of these slots depends on its last token."""
        return bool(self._masks) and any(
            slot in self._masks and self._masks[slot][1].needs_each_token for slot in slots
        )

    def advance(
        self,
        slots: np.ndarray,
        positions: np.ndarray,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Computes the masks of slots that draw the output tokens at `positions`. The tokens before
        these are known, unless the sequence has ended.

        Args:
            meanwhile: called every MEANWHILE_S seconds.
        """
        budget, called = StepBudget(len(slots)), time.monotonic()
        for slot, position in zip(slots.tolist(), positions.tolist(), strict=True):
            if slot not in self._masks:
                continue
            if meanwhile is not None and time.monotonic() - called > MEANWHILE_S:
                meanwhile()
                called = time.monotonic()
            sequence, mask = self._masks[slot]
            if sequence.finish_reason is not None:
                continue  # the step was planned before the end was known
            if slot not in self._unwritten and not mask.changes(position):
                continue
            self._unwritten.discard(slot)
            try:
                row = mask.row(position, sequence.output_token_ids, budget)
            except Exception as error:
                del self._masks[slot]
                if not isinstance(error, JaxserveError):
                    error = EngineError(f"its mask couldn't be built: {error!r}")
                self.failed.append((sequence, error))
            else:
                self._mask_rows.add(slot, row)

    def add_guess_masks(
        self, slot: int, position: int, guesses: tuple[int, ...], row: int, until: float
    ) -> None:
        """Computes the masks of the tokens after each guess of a slot, if it has masks. Where that
        fails, the mask allows nothing, so that the row draws -1 and no guess from there on is
        taken.

        Args:
            position: index of the output token that the first guess is for. advance() has been
                called for it.
            row: of the mask table, for the first of them; the others follow.
            until: by time.monotonic(), when to stop.
        """
        if slot not in self._masks or self._masks[slot][0].finish_reason is not None:
            return
        sequence, mask = self._masks[slot]
        outputs, nothing = sequence.output_token_ids, np.zeros(self._mask_rows.shape, np.int32)
        masks = mask.rows_after(position, outputs, guesses, until)
        for nth in range(len(guesses)):
            self._mask_rows.add(row + nth, next(masks, nothing))

    def upload(self, tables: SamplingTables) -> SamplingTables:
        """The tables with all pending rows written; `tables` are donated."""
        return SamplingTables(
            self._count_rows.upload(tables.counts),
            self._mask_rows.upload(tables.masks),
            self._bias_rows.upload(tables.bias),
        )

    def clear(self) -> None:
        """Removes all sequences and pending rows, for new tables."""
        self._masks.clear()
        self._unwritten.clear()
        for writer in (self._count_rows, self._mask_rows, self._bias_rows):
            writer.clear()

    def warm_up(self, tables: SamplingTables) -> SamplingTables:
        """Runs each program once, on the spare row."""
        for writer in (self._count_rows, self._mask_rows, self._bias_rows):
            writer.add(writer.spare, np.zeros(writer.shape, np.int32))
        return self.upload(tables)


class _Writer:
    """Pending rows of one table, and the program that writes `size` of them.

    Args:
        spare: the row that padding writes.
    """

    def __init__(self, table: jax.Array, size: int, spare: int) -> None:
        def write(table: jax.Array, slots: jax.Array, rows: jax.Array) -> jax.Array:
            return table.at[slots].set(rows)

        self.spare, self.shape, self._size = spare, table.shape[1:], size
        slots = jax.ShapeDtypeStruct((size,), jnp.int32)
        rows = jax.ShapeDtypeStruct((size, *self.shape), jnp.int32)
        self._write = jax.jit(write, donate_argnums=0).lower(table, slots, rows).compile()
        self._pending: list[tuple[int, np.ndarray]] = []

    def add(self, slot: int, row: np.ndarray) -> None:
        self._pending.append((slot, row))

    def clear(self) -> None:
        self._pending.clear()

    def upload(self, table: jax.Array) -> jax.Array:
        while self._pending:
            # New arrays each time: the device may still read the last ones.
            slots = np.full(self._size, self.spare, np.int32)
            rows = np.zeros((self._size, *self.shape), np.int32)
            for i, (slot, row) in enumerate(self._pending[: self._size]):
                slots[i], rows[i] = slot, row
            del self._pending[: self._size]
            table = self._write(table, slots, rows)
        return table
