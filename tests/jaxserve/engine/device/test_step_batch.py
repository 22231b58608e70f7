"""A step's buffer, and the positions and places of its tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.engine.device.buckets import Bucket
from jaxserve.engine.device.step_batch import (
    ENTRIES,
    HostBuffers,
    StepInts,
    int_shapes,
    place,
    split,
)

P, W, SPARE = 4, 5, 6


@pytest.mark.parametrize(
    ("bucket", "lengths"),
    [(Bucket(16, 3), [1, 7, 3]), (Bucket(16, 3), [2]), (Bucket(4, 4), [1] * 3)],
)
def test_tokens_are_placed_by_the_block_tables_of_their_rows(
    bucket: Bucket, lengths: list[int]
) -> None:
    rng = np.random.default_rng(0)
    tables = rng.integers(1, 99, (2, SPARE + 1, W)).astype(np.int32)
    slots, before = rng.permutation(SPARE)[: len(lengths)], rng.integers(0, 9, len(lengths))
    batch, starts = HostBuffers.allocate(bucket).batch, np.cumsum([0, *lengths])
    batch.query_starts[:] = starts[-1]
    batch.query_starts[: len(starts)] = starts
    batch.context_lens[: len(lengths)] = before + lengths
    batch.slots[:] = SPARE
    batch.slots[: len(lengths)] = slots
    found = jax.jit(place, static_argnums=2)(StepInts(*map(jnp.asarray, batch)), tables, P)
    positions = [b + i for b, n in zip(before, lengths, strict=True) for i in range(n)]
    where = [
        [
            tables[g, s, p // P] * P + p % P
            for p, s in zip(positions, slots.repeat(lengths), strict=True)
        ]
        for g in range(2)
    ]
    used = len(positions)
    assert found.positions[:used].tolist() == positions
    assert found.write_slots[:, :used].tolist() == where
    assert (found.write_slots[:, used:] == -1).all()
    for row, (slot, length) in enumerate(zip(slots, before + lengths, strict=True)):
        blocks = -(-length // P)
        assert (found.block_tables[:, row, :blocks] == tables[:, slot, :blocks]).all()
        assert (found.block_tables[:, row, blocks:] == 0).all()
    assert (found.block_tables[:, len(lengths) :] == 0).all()


@pytest.mark.parametrize("count", [0, 1, ENTRIES, 2 * ENTRIES + 3])
def test_every_new_entry_of_a_block_table_is_uploaded(count: int) -> None:
    bucket = Bucket(16, 3)
    entries = np.arange(4 * count, dtype=np.int32).reshape(4, count) % SPARE
    uploads = HostBuffers.allocate(bucket).uploads(entries, SPARE)
    sent = np.concatenate([StepInts(*split(p, int_shapes(bucket))).entries for p in uploads], 1)
    assert len(uploads) == max(1, -(-count // ENTRIES))
    assert (sent[:, :count] == entries).all()
    assert (sent[0, count:] > SPARE).all()
