"""Guessed tokens that a step verifies: each of a sequence's rows draws as if the guesses before it
were its output, and the guesses that equal the draws are taken."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Array = TypeVar("Array", np.ndarray, jax.Array)

_OWN_COLUMNS = 2
NO_GUESS = -1


class GuessRows(NamedTuple, Generic[Array]):
    """What the sampler takes of R rows beside their settings, int32. A sequence's rows lie one
    after another: the first goes on from its last token, and each other from a guess.

    Args:
        mask_rows: [R], each row's row of SamplingTables.masks.
        following: [R], the guess that the row verifies; NO_GUESS for a sequence's last row.
        before: [R, k], the sequence's guesses up to the row; NO_GUESS where there are fewer.
    """

    mask_rows: Array
    following: Array
    before: Array

    @classmethod
    def split(cls, columns: Array) -> GuessRows[Array]:
        """From columns [R, guess_columns(k)]; views when it is a NumPy array."""
        return cls(columns[:, 0], columns[:, 1], columns[:, _OWN_COLUMNS:])


def guess_columns(most: int) -> int:
    """Columns that GuessRows need for `most` guesses a sequence; none without guesses."""
    return _OWN_COLUMNS + most if most else 0


def taken_rows(
    guesses: GuessRows[jax.Array], ids: jax.Array, drawn: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The rows [R] whose drawn ids [R] join their sequence's output, and the last of them of each
    sequence: those up to the first row that draws another token than is guessed.

    Args:
        drawn: [R] bool, rows that draw, and whose id is a token.
    """
    matched = drawn & (ids == guesses.following)
    rows = jnp.arange(ids.shape[0])
    first = rows - jnp.sum(guesses.before != NO_GUESS, axis=1)
    misses = jnp.cumsum(~matched)
    before = misses - ~matched  # misses of all rows before this one
    taken = drawn & (before == before[first])
    goes_on = matched & jnp.roll(drawn, -1)
    return taken, taken & ~goes_on


def taken_ids(ids: list[int], guesses: tuple[int, ...]) -> list[int]:
    """The ids that taken_rows() takes of one sequence's rows; the first row's in any case, even if
    it is -1.

    Args:
        ids: what its rows drew; -1 where the logits weren't finite.
    """
    count = 0
    while count < len(guesses) and ids[count] == guesses[count]:
        count += 1
    if count and ids[count] < 0:
        # A step without guesses draws this token again, and reports what is wrong.
        return ids[:count]
    return ids[: count + 1]
