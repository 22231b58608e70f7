"""A step's arrays on the host: fields of one buffer, so that a step uploads a single array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.engine.device.buckets import Bucket
from jaxserve.models.weights import AdapterRows
from jaxserve.sampling.guesses import guess_columns
from jaxserve.sampling.row_settings import NUM_FLOATS, NUM_INTS

Array = TypeVar("Array", np.ndarray, jax.Array)

_OWN_COLUMNS = 4
ENTRIES = 256  # new entries of block tables that one buffer holds
DRAW_COLUMNS = _OWN_COLUMNS + NUM_INTS + NUM_FLOATS


class StepInts(NamedTuple, Generic[Array]):
    """Fields of a step's buffer, in order, all int32.

    Args:
        tokens: [T]; a negative value -1-slot means the slot's last sampled token, which only the
            device knows.
        query_starts: [S+1], first token of each row.
        context_lens: [S], tokens of each row's sequence up to and with this step.
        slots: [S], whose block tables the rows have; padding rows have the spare last one.
        entries: [4, ENTRIES], what is new in the block tables: slot, cache group, index and block;
            padding has a slot out of range, which the device ignores.
        draws: [R, DRAW_COLUMNS], and more columns for guesses, see DrawRows; R is the bucket's
            `drawn`.
    """

    tokens: Array
    query_starts: Array
    context_lens: Array
    slots: Array
    entries: Array
    draws: Array


def int_shapes(bucket: Bucket) -> tuple[tuple[int, ...], ...]:
    """Shapes of StepInts' fields for a bucket."""
    t, s = bucket.tokens, bucket.rows
    columns = DRAW_COLUMNS + guess_columns(bucket.guesses)
    return ((t,), (s + 1,), (s,), (s,), (4, ENTRIES), (bucket.drawn, columns))


class StepBatch(NamedTuple):
    """What layers read of a step, all int32.

    Args:
        positions: [T].
        write_slots: [G, T], where each token's K and V go in each cache group's blocks:
            block * P + offset; -1 is nowhere, for padding.
        query_starts: [S+1], first token of each row.
        context_lens: [S], tokens of each row's sequence up to and with this step.
        block_tables: [G, S, W], one a cache group; 0 behind the context.
        adapters: of the tokens; None in programs without adapters.
    """

    positions: jax.Array
    write_slots: jax.Array
    query_starts: jax.Array
    context_lens: jax.Array
    block_tables: jax.Array
    adapters: AdapterRows | None = None


def token_rows(ints: StepInts[jax.Array]) -> jax.Array:
    """The row of each token [T]."""
    token = jnp.arange(ints.tokens.shape[0])
    if ints.tokens.shape == ints.slots.shape:
        return token  # a pure decode
    row = jnp.searchsorted(ints.query_starts[1:], token, side="right", method="compare_all")
    return jnp.minimum(row, ints.slots.shape[0] - 1)


def token_adapters(ints: StepInts[jax.Array], slots: int) -> AdapterRows:
    """The adapter slots of a step's tokens.

    Args:
        slots: how many there are; this number means none.
    """
    own = DrawRows.split(ints.draws).adapters[token_rows(ints)]
    used = jnp.arange(ints.tokens.shape[0]) < ints.query_starts[-1]
    return AdapterRows.of(jnp.where(used, own, slots))


def place(ints: StepInts[jax.Array], tables: jax.Array, block_size: int) -> StepBatch:
    """The positions of a step's tokens, and their places in the pool by the slots' block tables
    [G, N+1, W]."""
    starts, lens = ints.query_starts, ints.context_lens
    token, width = jnp.arange(ints.tokens.shape[0]), tables.shape[2]
    row = token_rows(ints)
    used = token < starts[-1]
    positions = jnp.where(used, lens[row] - starts[row + 1] + token, 0)
    blocks = tables[:, ints.slots[row], positions // block_size]
    write_slots = jnp.where(used, blocks * block_size + positions % block_size, -1)
    # Entries behind the context are left over from a slot's previous occupant.
    known = jnp.arange(width) * block_size < lens[:, None]
    return StepBatch(
        positions, write_slots, starts, lens, jnp.where(known, tables[:, ints.slots], 0)
    )


def advance(bucket: Bucket) -> np.ndarray:
    """What to add to a pure decode's buffer to get that of the next step of the same rows, which
    are then one token further."""
    shapes = int_shapes(bucket)
    ints = np.zeros(size(shapes), np.int32)
    fields = StepInts(*split(ints, shapes))
    fields.context_lens[:] = 1
    DrawRows.split(fields.draws).output_positions[:] = 1
    return ints


def size(shapes: tuple[tuple[int, ...], ...]) -> int:
    """Elements of a buffer with these fields."""
    return sum(int(np.prod(shape)) for shape in shapes)


def split(buffer: Array, shapes: tuple[tuple[int, ...], ...]) -> list[Array]:
    """The fields of a flat buffer; views when it is a NumPy array."""
    fields, start = [], 0
    for shape in shapes:
        count = int(np.prod(shape))
        fields.append(buffer[start : start + count].reshape(shape))
        start += count
    return fields


class DrawRows(NamedTuple, Generic[Array]):
    """Columns of the sampler's input, int32: DRAW_COLUMNS, and those for guesses.

    Args:
        slots: [R], row of the persistent device state; padding rows have the spare last one.
        keep: [R], 1 where the row's sampled token becomes its slot's last token.
        output_positions: [R], index of the output token that the row samples.
        adapters: [R], adapter slot of the row; the number of slots is none.
        ints, floats: [R, NUM_INTS] and [R, NUM_FLOATS], see sampling.row_settings; floats as bits.
        guesses: [R, guess_columns(k)], see sampling.guesses.GuessRows; no columns in a step that
            verifies none.
    """

    slots: Array
    keep: Array
    output_positions: Array
    adapters: Array
    ints: Array
    floats: Array
    guesses: Array

    @classmethod
    def split(cls, buffer: Array) -> DrawRows[Array]:
        """The columns; views when it is a NumPy array."""
        ints_end = _OWN_COLUMNS + NUM_INTS
        return cls(
            buffer[:, 0],
            buffer[:, 1],
            buffer[:, 2],
            buffer[:, 3],
            buffer[:, _OWN_COLUMNS:ints_end],
            buffer[:, ints_end:DRAW_COLUMNS],
            buffer[:, DRAW_COLUMNS:],
        )

    @staticmethod
    def of(buffer: np.ndarray) -> DrawRows[np.ndarray]:
        """Views of a host buffer's columns, the floats as such."""
        rows = DrawRows.split(buffer)
        return rows._replace(floats=rows.floats.view(np.float32))


@dataclass(slots=True)
class HostBuffers:
    """One bucket's buffer and the named views into it."""

    ints: np.ndarray
    batch: StepInts[np.ndarray]
    rows: DrawRows[np.ndarray]

    @classmethod
    def allocate(cls, bucket: Bucket) -> HostBuffers:
        shapes = int_shapes(bucket)
        ints = np.zeros(size(shapes), np.int32)
        batch = StepInts(*split(ints, shapes))
        return cls(ints, batch, DrawRows.of(batch.draws))

    def uploads(self, entries: np.ndarray, spare: int) -> list[np.ndarray]:
        """Copies of the buffer for the device, as many as the entries [4, n] need; the last one
        has the last of them. Copies, since the device may still read them when the buffer is
        filled again.

        Args:
            spare: the slot that padding points at.
        """
        copies = []
        for first in range(0, max(1, entries.shape[1]), ENTRIES):
            some = entries[:, first : first + ENTRIES]
            self.batch.entries.fill(spare + 1)
            self.batch.entries[:, : some.shape[1]] = some
            copies.append(self.ints.copy())
        return copies
