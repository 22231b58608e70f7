"""Samples the next token of each row, on the device; each row has its own settings."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p

from jaxserve.sampling.logit_processors import SamplingTables, process
from jaxserve.sampling.row_settings import SamplingRows

LANES = 256  # tokens that are summed first, see _invert
_GROUP = 128  # tokens of which the largest logit is found first, see _argmax_by_groups


def sample(
    logits: jax.Array, rows: SamplingRows, tables: SamplingTables, one_by_one: bool = False
) -> jax.Array:
    """Token ids [S] int32 drawn from logits [S, V] float32; -1 where they aren't finite.

    First the logit processors, then temperature, min_p, top_k, top_p and typical_p, then the draw,
    which depends on nothing but the row's seed and position. If all rows are greedy and without
    processors the cost is an argmax; processors cost nothing if no row has any.

    Args:
        one_by_one: handle rows one after another if they aren't greedy or have processors. That is
            best on a CPU: XLA runs a branch on one core, whose cache holds one row, and memory is
            needed for one row instead of all.
    """
    # Outside the branches, so that it runs on all cores.
    likeliest = _argmax(logits)
    special = rows.processed | (rows.temperature > 0)

    def choose(
        logits: jax.Array, rows: SamplingRows, likeliest: jax.Array, special: jax.Array
    ) -> jax.Array:
        return jax.lax.cond(
            jnp.any(special), lambda: _choose(logits, rows, tables, likeliest), lambda: likeliest
        )

    def one(row: tuple[jax.Array, SamplingRows, jax.Array, jax.Array]) -> jax.Array:
        return choose(*jax.tree.map(lambda x: x[None], row))[0]

    every = (logits, rows, likeliest, special)
    if not one_by_one:
        return choose(*every)
    return jax.lax.cond(jnp.any(special), lambda: jax.lax.map(one, every), lambda: likeliest)


def _choose(
    logits: jax.Array, rows: SamplingRows, tables: SamplingTables, likeliest: jax.Array
) -> jax.Array:
    """Token ids [S] by the rows' settings; `likeliest` are those of the unprocessed logits."""
    processed, drawing = jnp.any(rows.processed), rows.temperature > 0
    # A branch that returned the logits themselves would make XLA copy them, even in batches without
    # processors.
    zero = jnp.where(processed, 1.0, 0.0)

    def change() -> tuple[jax.Array, jax.Array]:
        changed = process(logits, rows, tables)
        return changed, _argmax(changed)

    changed, best = jax.lax.cond(processed, change, lambda: (logits + zero, likeliest))
    drawn = jax.lax.cond(jnp.any(drawing), lambda: _draw(changed, rows), lambda: best)
    return jnp.where(drawing & (best >= 0), drawn, best)


def _argmax(logits: jax.Array) -> jax.Array:
    """The likeliest token [S]; -1 if a logit is NaN or inf, or none is finite."""
    find = _argmax_by_groups if jax.default_backend() == "cpu" else jnp.argmax
    ids = find(logits, axis=-1)[:, None].astype(jnp.int32)  # that of a NaN if there is one
    return jnp.where(jnp.isfinite(jnp.take_along_axis(logits, ids, axis=-1)), ids, -1)[:, 0]


def _argmax_by_groups(logits: jax.Array, axis: int) -> jax.Array:
    """jnp.argmax of the last axis, NaN being as large as infinity: first in which group, then in
    that group alone. XLA vectorises a maximum on a CPU, though one that overlooks NaN, but not an
    argmax, which takes 20 times as long."""
    tokens = logits.shape[axis]
    logits = jnp.where(jnp.isnan(logits), jnp.inf, logits)
    padding = ((0, 0), (0, -tokens % _GROUP))
    groups = jnp.pad(logits, padding, constant_values=-jnp.inf).reshape(len(logits), -1, _GROUP)
    best = jnp.argmax(jnp.max(groups, axis=-1), axis=-1)
    chosen = jnp.take_along_axis(groups, best[:, None, None], axis=1)[:, 0]
    return best * _GROUP + jnp.argmax(chosen, axis=-1)


def _draw(logits: jax.Array, rows: SamplingRows) -> jax.Array:
    temperature = jnp.where(rows.temperature > 0, rows.temperature, 1.0)
    below = logits - jnp.max(logits, axis=-1, keepdims=True)
    weights = jnp.exp(below / temperature[:, None])  # [S, V], the likeliest is 1
    weights = jnp.where(weights >= rows.min_p[:, None], weights, 0.0)
    vocab = logits.shape[-1]
    top_k = jnp.where(rows.top_k > 0, jnp.minimum(rows.top_k, vocab), jnp.inf)
    weights = _keep_at_least(weights, weights, jnp.ones_like(weights), top_k)
    weights = _keep_at_least(weights, weights, weights, _share(weights, rows.top_p))
    weights = jax.lax.cond(
        jnp.any(rows.typical_p < 1), lambda: _keep_typical(weights, rows.typical_p), lambda: weights
    )

    return _invert(weights, _uniforms(rows.seed, rows.position))


def _uniforms(seed: jax.Array, position: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two numbers [S] in [0, 1) from seed [S, 2] and position [S]: one Threefry block each, keyed
    by the seed, whose counter is the position (Salmon et al., 2011)."""
    counter = position.astype(jnp.uint32)
    words = threefry2x32_p.bind(seed[:, 0], seed[:, 1], counter, jnp.zeros_like(counter))
    first, second = ((word >> 8).astype(jnp.float32) * 2.0**-24 for word in words)
    return first, second


def _invert(weights: jax.Array, uniforms: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Draws from weights [S, V] by inverting their cumulative sum, in two levels.

    The first uniform [S] of a row chooses a run of LANES tokens, the second a token in it: two
    short sums instead of one over V, and finer than one 24-bit uniform.
    """
    rows, vocab = weights.shape
    runs = jnp.pad(weights, ((0, 0), (0, -vocab % LANES))).reshape(rows, -1, LANES)
    run = _first_above(jnp.sum(runs, axis=-1), uniforms[0])
    chosen = jnp.take_along_axis(runs, run[:, None, None], axis=1)[:, 0]
    return run * LANES + _first_above(chosen, uniforms[1])


def _first_above(mass: jax.Array, uniform: jax.Array) -> jax.Array:
    """Index [S] at which the cumulative mass [S, N] passes the share `uniform` [S] of the whole.

    Entries without mass are never chosen, whatever the rounding of the sums.
    """
    cumulative = jnp.where(mass > 0, jnp.cumsum(mass, axis=-1), -1.0)
    total = jnp.max(cumulative, axis=-1)
    target = jnp.minimum(uniform * total, jnp.nextafter(total, 0.0))
    return jnp.argmax(cumulative > target[:, None], axis=-1).astype(jnp.int32)


def _share(weights: jax.Array, share: jax.Array) -> jax.Array:
    """The mass [S] that is `share` [S] of the whole, but never none; inf for all of it."""
    part = jnp.maximum(share * jnp.sum(weights, axis=-1), jnp.finfo(jnp.float32).tiny)
    return jnp.where(share < 1, part, jnp.inf)


def _keep_typical(weights: jax.Array, typical_p: jax.Array) -> jax.Array:
    """Keeps the weights [S, V] whose surprise is closest to the entropy."""
    surprise = jnp.where(weights > 0, -jnp.log(weights), 0.0)  # up to the same constant a row
    total = jnp.sum(weights, axis=-1, keepdims=True)
    entropy = jnp.sum(weights * surprise, axis=-1, keepdims=True) / total
    score = jnp.where(weights > 0, 1 / (1 + jnp.abs(surprise - entropy)), 0.0)
    return _keep_at_least(weights, score, weights, _share(weights, typical_p))


def _keep_at_least(
    weights: jax.Array, score: jax.Array, mass: jax.Array, target: jax.Array
) -> jax.Array:
    """Zeroes weights [S, V], keeping the fewest of best score [S, V] whose mass reaches target [S].

    Tokens that score as high as the last one kept stay too. The threshold is found by bisection on
    the bits of the scores, in [0, 1] (order of non-negative floats is the order of their bits), so
    it is exact and needs no sort. A target of inf keeps everything; when all are, nothing is
    searched.
    """
    bits = jax.lax.bitcast_convert_type(score, jnp.int32)

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds  # mass above `low` reaches the target, mass above `high` doesn't
        middle = low + (high - low) // 2
        enough = jnp.sum(jnp.where(bits >= middle[:, None], mass, 0.0), axis=-1) >= target
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low = jnp.zeros(score.shape[0], jnp.int32)
    high = jnp.full_like(low, jax.lax.bitcast_convert_type(jnp.float32(1.0), jnp.int32) + 1)
    passes = jnp.where(jnp.any(target < jnp.inf), 31, 0)
    low, _ = jax.lax.fori_loop(0, passes, halve, (low, high))
    return jnp.where(bits >= low[:, None], weights, 0.0)
