"""Log-probabilities of the model's own distribution, on the device."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.sampling.params import MAX_LOGPROBS

Array = TypeVar("Array", np.ndarray, jax.Array)


class Logprobs(NamedTuple, Generic[Array]):
    """Log-probabilities at R positions, each of one token and of the likeliest ones.

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


def token_logprobs(
    logits: jax.Array, ids: jax.Array, wanted: jax.Array, one_by_one: bool = False
) -> Logprobs[jax.Array]:
    """Logprobs of ids [R] under logits [R, V]; zeros, without the cost, if none is wanted [R].

    Args:
        one_by_one: see sampler.sample.
    """

    def nothing(rows: int = logits.shape[0]) -> Logprobs[jax.Array]:
        top = (rows, min(MAX_LOGPROBS, logits.shape[-1]))
        return Logprobs(
            jnp.zeros(rows), jnp.zeros(rows, jnp.int32), jnp.zeros(top, jnp.int32), jnp.zeros(top)
        )

    def one(row: tuple[jax.Array, jax.Array, jax.Array]) -> Logprobs[jax.Array]:
        logits, own, wanted = (x[None] for x in row)
        found = jax.lax.cond(wanted[0], lambda: logprobs_of(logits, own), lambda: nothing(1))
        return Logprobs(*(x[0] for x in found))

    def all_rows() -> Logprobs[jax.Array]:
        found: Logprobs[jax.Array] = jax.lax.map(one, (logits, ids, wanted))
        return found

    some = all_rows if one_by_one else lambda: logprobs_of(logits, ids)
    return jax.lax.cond(jnp.any(wanted), some, nothing)


def logprobs_of(logits: jax.Array, ids: jax.Array) -> Logprobs[jax.Array]:
    """Logprobs of ids [R] under logits [R, V]; -inf for a prompt's id past V, which can't be
    drawn."""
    chosen = jnp.take_along_axis(logits, ids[:, None], axis=-1, mode="fill", fill_value=-jnp.inf)
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    top, top_ids = jax.lax.top_k(logits, min(MAX_LOGPROBS, logits.shape[-1]))
    rank = 1 + jnp.sum(logits > chosen, axis=-1, dtype=jnp.int32)
    return Logprobs((chosen - total)[:, 0], rank, top_ids.astype(jnp.int32), top - total)
