"""Log-probabilities of the model's own distribution, on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.sampling.params import MAX_LOGPROBS

PIECE = 128  # prompt tokens whose logits are in memory at once


Array = TypeVar("Array", np.ndarray, jax.Array)


class Logprobs(NamedTuple, Generic[Array]):
    """Of R positions, each about its own token.

    Args:
        chosen: [R] float32, log-probability of the token.
        rank: [R] int32, 1 for the likeliest token.
        top_ids: [R, K] int32, the likeliest tokens first, K at most MAX_LOGPROBS.
        top: [R, K] float32, their log-probabilities.
    """

    chosen: Array
    rank: Array
    top_ids: Array
    top: Array


def token_logprobs(logits: jax.Array, ids: jax.Array, wanted: jax.Array) -> Logprobs[jax.Array]:
    """Logprobs of ids [R] under logits [R, V]; zeros, at no cost, unless some are wanted [R]."""
    return _if_any(wanted, ids.shape[0], logits.shape[-1], lambda: _compute(logits, ids))


def prompt_logprobs(
    hidden: jax.Array, targets: jax.Array, head: Callable[[jax.Array], jax.Array], vocab: int
) -> Logprobs[jax.Array]:
    """Logprobs of each token's successor.

    Args:
        hidden: [T, E].
        targets: [T] int32, the next token; negative where it isn't asked for.
        head: hidden [R, E] to logits [R, V].
        vocab: V.
    """
    count = targets.shape[0]
    size = min(PIECE, count)
    padding = -count % size

    def compute() -> Logprobs[jax.Array]:
        pieces = (
            jnp.pad(hidden, ((0, padding), (0, 0))).reshape(-1, size, hidden.shape[-1]),
            jnp.pad(jnp.maximum(targets, 0), (0, padding)).reshape(-1, size),
        )
        out = jax.lax.map(lambda piece: _compute(head(piece[0]), piece[1]), pieces)
        return Logprobs(*(x.reshape(-1, *x.shape[2:])[:count] for x in out))

    return _if_any(targets >= 0, count, vocab, compute)


def _if_any(
    wanted: jax.Array, rows: int, vocab: int, compute: Callable[[], Logprobs[jax.Array]]
) -> Logprobs[jax.Array]:
    def nothing() -> Logprobs[jax.Array]:
        top = (rows, min(MAX_LOGPROBS, vocab))
        return Logprobs(
            jnp.zeros(rows), jnp.zeros(rows, jnp.int32), jnp.zeros(top, jnp.int32), jnp.zeros(top)
        )

    return jax.lax.cond(jnp.any(wanted), compute, nothing)


def _compute(logits: jax.Array, ids: jax.Array) -> Logprobs[jax.Array]:
    chosen = jnp.take_along_axis(logits, ids[:, None], axis=-1)
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    top, top_ids = jax.lax.top_k(logits, min(MAX_LOGPROBS, logits.shape[-1]))
    rank = 1 + jnp.sum(logits > chosen, axis=-1, dtype=jnp.int32)
    return Logprobs((chosen - total)[:, 0], rank, top_ids.astype(jnp.int32), top - total)
