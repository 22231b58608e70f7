"""A step's host arrays: one buffer of int32, one of float32, so that a step uploads two arrays."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import jax
import numpy as np

from jaxserve.engine.buckets import Bucket
from jaxserve.sampling.rows import NUM_FLOATS, NUM_INTS

Array = TypeVar("Array", np.ndarray, jax.Array)


class StepInts(NamedTuple, Generic[Array]):
    """Fields of the int32 buffer, in order.

    Args:
        tokens: [T]; a negative value -1-slot means the slot's last sampled token, which only the
            device knows.
        positions: [T].
        write_slots: [G, T], where each token's K and V go in each cache group's blocks:
            block * P + offset.
        query_starts: [S+1], first token of each row.
        context_lens: [S], tokens of each row's sequence up to and with this step.
        slots: [S], row of the persistent device state; padding rows have the spare last one.
        keep: [S], 1 where the row's sampled token becomes its slot's last token.
        output_positions: [S], index of the output token that the row samples.
        settings: [S, NUM_INTS], see sampling.rows.
        block_tables: [G, S, W], one a cache group.
        targets: [T], the prompt token that follows, for prompt logprobs; negative where they aren't
            asked for. Pure decodes leave it out, [0].
    """

    tokens: Array
    positions: Array
    write_slots: Array
    query_starts: Array
    context_lens: Array
    slots: Array
    keep: Array
    output_positions: Array
    settings: Array
    block_tables: Array
    targets: Array


def int_shapes(bucket: Bucket, width: int, groups: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of StepInts' fields for a bucket, a block table width W and G cache groups."""
    t, s = bucket.tokens, bucket.rows
    targets = 0 if bucket.decode else t
    rows = ((s + 1,), (s,), (s,), (s,), (s,), (s, NUM_INTS), (groups, s, width))
    return ((t,), (t,), (groups, t), *rows, (targets,))


def float_shape(bucket: Bucket) -> tuple[int, int]:
    """Shape of the float32 buffer, each row's settings (see sampling.rows)."""
    return (bucket.rows, NUM_FLOATS)


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
