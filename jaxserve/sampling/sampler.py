"""Choosing the next token of each row, on the device, for rows that each ask for something else."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class SamplingRows(NamedTuple):
    """One row's settings an entry.

    Args:
        temperature: [S] float32; 0 is greedy.
        top_p, min_p: [S] float32; 1 and 0 keep all.
        top_k: [S] int32; 0 keeps all.
        seed: [S, 2] uint32, high and low word.
        position: [S] int32, index of the output token drawn.
    """

    temperature: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    top_k: jax.Array
    seed: jax.Array
    position: jax.Array


def sample(logits: jax.Array, rows: SamplingRows) -> jax.Array:
    """Token ids [S] int32 drawn from logits [S, V] float32.

    Temperature first, then min_p, top_k and top_p, then the draw, which depends on a row's seed
    and position alone. A batch whose rows are all greedy costs an argmax.
    """
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    return jax.lax.cond(
        jnp.any(rows.temperature > 0),
        lambda: jnp.where(rows.temperature > 0, _draw(logits, rows), greedy),
        lambda: greedy,
    )


def _draw(logits: jax.Array, rows: SamplingRows) -> jax.Array:
    temperature = jnp.where(rows.temperature > 0, rows.temperature, 1.0)
    scaled = logits / temperature[:, None]
    scaled = scaled - jnp.max(scaled, axis=-1, keepdims=True)
    weights = jnp.exp(scaled)  # [S, V], the likeliest is 1
    weights = jnp.where(weights >= rows.min_p[:, None], weights, 0.0)
    vocab = logits.shape[-1]
    top_k = jnp.where(rows.top_k > 0, jnp.minimum(rows.top_k, vocab), vocab)
    weights = _keep_at_least(weights, jnp.ones_like(weights), top_k.astype(jnp.float32))
    nucleus = jnp.where(rows.top_p < 1, rows.top_p * jnp.sum(weights, axis=-1), jnp.inf)
    weights = _keep_at_least(weights, weights, nucleus)

    def gumbel(seed: jax.Array, position: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        return jax.random.gumbel(jax.random.fold_in(key, position), (vocab,))

    # The largest of log-weight plus Gumbel noise is a draw from the weights.
    noise = jax.vmap(gumbel)(rows.seed, rows.position)
    return jnp.argmax(jnp.log(weights) + noise, axis=-1).astype(jnp.int32)


def _keep_at_least(weights: jax.Array, mass: jax.Array, target: jax.Array) -> jax.Array:
    """Zeroes the small weights [S, V], keeping the fewest likeliest whose mass reaches target [S].

    Tokens as likely as the last one kept stay too. The threshold is found by bisection on the bits
    of the weights (order of non-negative floats is the order of their bits), so it is exact and
    needs no sort. A target that all mass can't reach keeps everything.
    """
    bits = jax.lax.bitcast_convert_type(weights, jnp.int32)

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds  # mass above `low` reaches the target, mass above `high` doesn't
        middle = low + (high - low) // 2
        enough = jnp.sum(jnp.where(bits >= middle[:, None], mass, 0.0), axis=-1) >= target
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low = jnp.zeros(weights.shape[0], jnp.int32)
    high = jnp.full_like(low, jax.lax.bitcast_convert_type(jnp.float32(1.0), jnp.int32) + 1)
    low, _ = jax.lax.fori_loop(0, 31, halve, (low, high))
    return jnp.where(bits >= low[:, None], weights, 0.0)
