"""A step's host arrays: two flat buffers, int32 and float32, so that a step uploads two arrays."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import jax
import numpy as np

from jaxserve.engine.buckets import Bucket
from jaxserve.sampling.sampler import SamplingRows

Array = TypeVar("Array", np.ndarray, jax.Array)


class StepInts(NamedTuple, Generic[Array]):
    """Fields of the int32 buffer, in order.

    Args:
        tokens: [T]; a negative value -1-slot means the slot's last sampled token, which only the
            device knows.
        positions: [T].
        write_slots: [T], where in the pool each token's K and V go: block * P + offset.
        query_starts: [S+1], first token of each row.
        context_lens: [S], tokens of each row's sequence up to and with this step.
        slots: [S], row of the persistent device state; padding rows have the spare last one.
        keep: [S], 1 where the row's sampled token becomes its slot's last token.
        output_positions: [S], index of the output token that the row samples.
        seeds: [S, 2], uint32 bits.
        top_k: [S].
        block_tables: [S, W].
    """

    tokens: Array
    positions: Array
    write_slots: Array
    query_starts: Array
    context_lens: Array
    slots: Array
    keep: Array
    output_positions: Array
    seeds: Array
    top_k: Array
    block_tables: Array


class StepFloats(NamedTuple, Generic[Array]):
    """Fields of the float32 buffer, each [S]."""

    temperature: Array
    top_p: Array
    min_p: Array


def int_shapes(bucket: Bucket, width: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of StepInts' fields for a bucket and a block table width W."""
    t, s = bucket.tokens, bucket.rows
    return ((t,), (t,), (t,), (s + 1,), (s,), (s,), (s,), (s,), (s, 2), (s,), (s, width))


def float_shapes(bucket: Bucket) -> tuple[tuple[int, ...], ...]:
    """Shapes of StepFloats' fields for a bucket."""
    return ((bucket.rows,),) * len(StepFloats._fields)


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


def sampling_rows(ints: StepInts[jax.Array], floats: StepFloats[jax.Array]) -> SamplingRows:
    """The sampler's settings from a step's device arrays."""
    return SamplingRows(
        temperature=floats.temperature,
        top_p=floats.top_p,
        min_p=floats.min_p,
        top_k=ints.top_k,
        seed=jax.lax.bitcast_convert_type(ints.seeds, np.uint32),
        position=ints.output_positions,
    )
