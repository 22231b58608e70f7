"""Choosing the next token of each row, on the device, for rows that each ask for something else."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

LANES = 256


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

    def uniforms(seed: jax.Array, position: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        return jax.random.uniform(jax.random.fold_in(key, position), (2,))

    return _invert(weights, jax.vmap(uniforms)(rows.seed, rows.position))


def _invert(weights: jax.Array, uniforms: jax.Array) -> jax.Array:
    """Draws from weights [S, V] by inverting their cumulative sum, in two levels.

    The first uniform of a row [S, 2] chooses a run of LANES tokens, the second a token in it: two
    short sums instead of one over V, and finer than one 24-bit uniform.
    """
    rows, vocab = weights.shape
    runs = jnp.pad(weights, ((0, 0), (0, -vocab % LANES))).reshape(rows, -1, LANES)
    run = _first_above(jnp.sum(runs, axis=-1), uniforms[:, 0])
    chosen = jnp.take_along_axis(runs, run[:, None, None], axis=1)[:, 0]
    return run * LANES + _first_above(chosen, uniforms[:, 1])


def _first_above(mass: jax.Array, uniform: jax.Array) -> jax.Array:
    """Index [S] at which the cumulative mass [S, N] passes the share `uniform` [S] of the whole.

    Entries without mass are never chosen, whatever the rounding of the sums.
    """
    cumulative = jnp.where(mass > 0, jnp.cumsum(mass, axis=-1), -1.0)
    total = jnp.max(cumulative, axis=-1)
    target = jnp.minimum(uniform * total, jnp.nextafter(total, 0.0))
    return jnp.argmax(cumulative > target[:, None], axis=-1).astype(jnp.int32)


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
