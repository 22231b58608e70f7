"""The device takes of each sequence's guesses those that the host takes."""

from __future__ import annotations

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.sampling.guesses import NO_GUESS, GuessRows, guess_columns, taken_ids, taken_rows

MOST = 3
TOKENS = st.integers(0, 2)
drafts = st.lists(
    st.tuples(
        st.lists(TOKENS, max_size=MOST),  # guesses
        st.lists(st.integers(-1, 2), min_size=MOST + 1, max_size=MOST + 1),  # what the rows draw
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=200, deadline=None)
@given(drafts)
def test_rows_taken(batch: list[tuple[list[int], list[int]]]) -> None:
    count = 5 * (MOST + 1) + 2  # rows of the longest batch, and padding
    columns = np.full((count, guess_columns(MOST)), NO_GUESS, np.int32)
    rows = GuessRows.split(columns)
    ids, keep, first = np.zeros(count, np.int32), np.zeros(count, bool), 0
    expected_taken, expected_last = [], []
    for guesses, drawn in batch:
        own = len(guesses) + 1
        ids[first : first + own], keep[first : first + own] = drawn[:own], True
        for place, guess in enumerate(guesses):
            rows.following[first + place] = guess
            rows.before[first + place + 1, : place + 1] = guesses[: place + 1]
        taken = taken_ids(drawn, tuple(guesses))
        if taken != [-1]:
            expected_taken += range(first, first + len(taken))
            expected_last.append(first + len(taken) - 1)
        first += own
    found, last = jax.jit(taken_rows)(rows, ids, keep & (ids >= 0))
    assert np.flatnonzero(found).tolist() == expected_taken
    assert np.flatnonzero(last).tolist() == expected_last


def test_what_is_taken() -> None:
    assert taken_ids([5, 6, 7], (5, 6)) == [5, 6, 7]
    assert taken_ids([5, 9, 7], (5, 6)) == [5, 9]
    assert taken_ids([9, 6, 7], (5, 6)) == [9]
    assert taken_ids([-1, 6, 7], (5, 6)) == [-1]  # the request fails
    assert taken_ids([5, -1, 7], (5, 6)) == [5]  # the next step draws it again
    assert taken_ids([5], ()) == [5]
