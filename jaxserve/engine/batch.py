"""A step's host arrays: one buffer for the model, one for the sampler, so two arrays go up."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import jax
import numpy as np

from jaxserve.engine.buckets import Bucket
from jaxserve.sampling.rows import NUM_FLOATS, NUM_INTS

Array = TypeVar("Array", np.ndarray, jax.Array)

_OWN_COLUMNS = 3
DRAW_COLUMNS = _OWN_COLUMNS + NUM_INTS + NUM_FLOATS


class StepInts(NamedTuple, Generic[Array]):
    """Fields of the model's buffer, in order, all int32.

    Args:
        tokens: [T]; a negative value -1-slot means the slot's last sampled token, which only the
            device knows.
        positions: [T].
        write_slots: [G, T], where each token's K and V go in each cache group's blocks:
            block * P + offset.
        query_starts: [S+1], first token of each row.
        context_lens: [S], tokens of each row's sequence up to and with this step.
        block_tables: [G, S, W], one a cache group.
    """

    tokens: Array
    positions: Array
    write_slots: Array
    query_starts: Array
    context_lens: Array
    block_tables: Array


def int_shapes(bucket: Bucket, width: int, groups: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of StepInts' fields for a bucket, a block table width W and G cache groups."""
    t, s = bucket.tokens, bucket.rows
    return ((t,), (t,), (groups, t), (s + 1,), (s,), (groups, s, width))


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
    """Columns of the sampler's buffer [R, DRAW_COLUMNS] int32; R is the bucket's `drawn`.

    Args:
        slots: [R], row of the persistent device state; padding rows have the spare last one.
        keep: [R], 1 where the row's sampled token becomes its slot's last token.
        output_positions: [R], index of the output token that the row samples.
        ints, floats: [R, NUM_INTS] and [R, NUM_FLOATS], see sampling.rows; the floats as bits.
    """

    slots: Array
    keep: Array
    output_positions: Array
    ints: Array
    floats: Array

    @classmethod
    def split(cls, buffer: Array) -> DrawRows[Array]:
        """The columns; views when it is a NumPy array."""
        ints_end = _OWN_COLUMNS + NUM_INTS
        return cls(
            buffer[:, 0],
            buffer[:, 1],
            buffer[:, 2],
            buffer[:, _OWN_COLUMNS:ints_end],
            buffer[:, ints_end:],
        )
