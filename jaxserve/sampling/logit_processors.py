"""Changes of the logits before the draw: bias, masks and penalties, from tables on the device."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.sampling.guesses import NO_GUESS
from jaxserve.sampling.mask_bits import WORD, mask_words
from jaxserve.sampling.params import MAX_LOGIT_BIAS
from jaxserve.sampling.row_settings import SamplingRows


class SamplingTables(NamedTuple):
    """Persistent state, one row a slot. Rows of slots that don't use a table are arbitrary.

    Args:
        counts: [N+1, V] int32, twice a token's count in the output, plus 1 if the prompt has it.
            The step keeps it up to date.
        masks: [N+1+M, ceil(V / 32)] int32, bit i of word w set where token 32 w + i may be drawn.
            The last M rows are those of tokens after guesses, for one step each.
        bias: [N+1, 2, MAX_LOGIT_BIAS] int32, token ids (V if unused) and bits of float32 values.
    """

    counts: jax.Array
    masks: jax.Array
    bias: jax.Array

    @classmethod
    def allocate(cls, rows: int, vocab: int, guess_masks: int = 0) -> SamplingTables:
        return cls(
            jnp.zeros((rows, vocab), jnp.int32),
            jnp.zeros((rows + guess_masks, mask_words(vocab)), jnp.int32),
            jnp.zeros((rows, 2, MAX_LOGIT_BIAS), jnp.int32),
        )


def process(logits: jax.Array, rows: SamplingRows, tables: SamplingTables) -> jax.Array:
    """Logits [S, V] float32 with bias added, masked tokens at -inf, and penalties applied."""
    vocab = logits.shape[-1]
    bias = tables.bias[rows.slot]  # [S, 2, MAX_LOGIT_BIAS]
    tokens = jnp.where(rows.biased[:, None], bias[:, 0], vocab)
    values = jax.lax.bitcast_convert_type(bias[:, 1], jnp.float32)
    row = jnp.arange(logits.shape[0])[:, None]
    # Added to zeros first: XLA would copy the logits to add to them in place, even in batches
    # without a bias.
    logits = logits + jnp.zeros_like(logits).at[row, tokens].add(values, mode="drop")

    mask_rows = rows.slot if rows.guesses is None else rows.guesses.mask_rows
    bits = tables.masks[mask_rows][:, :, None] >> jnp.arange(WORD)
    allowed = (bits.reshape(logits.shape[0], -1)[:, :vocab] & 1) != 0
    logits = jnp.where(allowed | ~rows.masked[:, None], logits, -jnp.inf)

    counts = tables.counts[rows.slot]
    if rows.guesses is not None:
        guessed = jnp.where(rows.guesses.before == NO_GUESS, vocab, rows.guesses.before)
        counts = counts.at[row, guessed].add(2, mode="drop")
    repetition = jnp.where(counts > 0, rows.repetition[:, None], 1.0)
    logits = jnp.where(logits > 0, logits / repetition, logits * repetition)
    outputs = counts >> 1
    penalty = rows.frequency[:, None] * outputs + rows.presence[:, None] * (outputs > 0)
    return jnp.where(rows.penalised[:, None], logits - penalty, logits)


def count(counts: jax.Array, slots: jax.Array, ids: jax.Array, kept: jax.Array) -> jax.Array:
    """Counts [N+1, V] with the ids [S] added that were drawn in slots [S], where kept [S]."""
    return counts.at[slots, ids].add(2 * kept.astype(jnp.int32), mode="drop")


def counts_row(prompt: list[int], outputs: list[int], vocab: int) -> np.ndarray:
    """The counts [V] of a sequence with these tokens; ids past V are left out."""
    row = np.zeros(vocab, np.int32)
    seen = np.array(prompt)
    row[seen[seen < vocab]] = 1
    np.add.at(row, outputs, 2)
    return row


def bias_row(bias: dict[int, float], vocab: int) -> np.ndarray:
    """The bias row [2, MAX_LOGIT_BIAS] of a request."""
    row = np.zeros((2, MAX_LOGIT_BIAS), np.int32)
    row[0] = vocab
    row[0, : len(bias)] = list(bias)
    row[1, : len(bias)] = np.array(list(bias.values()), np.float32).view(np.int32)
    return row
