"""The device sampler against exact probabilities and plain definitions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.sampling.sampler import SamplingRows, _keep_at_least, sample

VOCAB = 64
DRAWS = 20_000
CHI_SQUARE_63_P_1E_6 = 139.0  # upper bound on 63 degrees of freedom, p = 1e-6 (scipy.stats.chi2)

LOGITS = np.random.default_rng(0).normal(0, 2, VOCAB).astype(np.float32)


def rows(n: int, **settings: float) -> SamplingRows:
    def full(name: str, default: float, dtype: type) -> jax.Array:
        return jnp.full(n, settings.get(name, default), dtype)

    seeds = jnp.stack([jnp.zeros(n, jnp.uint32), jnp.arange(n, dtype=jnp.uint32)], axis=1)
    return SamplingRows(
        temperature=full("temperature", 1.0, jnp.float32),
        top_p=full("top_p", 1.0, jnp.float32),
        min_p=full("min_p", 0.0, jnp.float32),
        top_k=full("top_k", 0, jnp.int32),
        seed=seeds,
        position=jnp.zeros(n, jnp.int32),
    )


def expected(temperature: float = 1.0, top_p: float = 1.0, min_p: float = 0.0, top_k: int = 0):
    """The definition, in float64: temperature, min_p, top_k, top_p, renormalise."""
    p = np.exp(LOGITS.astype(np.float64) / temperature)
    p /= p.sum()
    p[p < min_p * p.max()] = 0
    order = np.argsort(-p)
    if top_k:
        p[order[top_k:]] = 0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= top_p]] = 0
    return p / p.sum()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 1.7},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    ],
)
def test_draws_follow_the_distribution(settings: dict[str, float]) -> None:
    logits = jnp.broadcast_to(jnp.asarray(LOGITS), (DRAWS, VOCAB))
    ids = np.asarray(jax.jit(sample)(logits, rows(DRAWS, **settings)))
    counts = np.bincount(ids, minlength=VOCAB)
    p = expected(**settings)
    assert counts[p == 0].sum() == 0
    kept = p > 0
    chi_square = ((counts - DRAWS * p)[kept] ** 2 / (DRAWS * p[kept])).sum()
    assert chi_square < CHI_SQUARE_63_P_1E_6


def test_draws_reach_every_run_of_a_long_vocabulary_and_no_token_without_weight() -> None:
    weights = np.zeros(1000, np.float32)
    weights[[0, 255, 256, 700, 999]] = [1, 2, 3, 4, 10]  # both ends, both sides of a run's edge
    with np.errstate(divide="ignore"):
        logits = jnp.broadcast_to(jnp.asarray(np.log(weights)), (DRAWS, 1000))
    counts = np.bincount(np.asarray(sample(logits, rows(DRAWS))), minlength=1000)
    assert counts[weights == 0].sum() == 0
    kept = weights > 0
    expected_counts = DRAWS * weights[kept] / weights.sum()
    assert ((counts[kept] - expected_counts) ** 2 / expected_counts).sum() < 35  # 4 dof, p < 1e-6


def test_a_row_draws_the_same_wherever_it_stands() -> None:
    logits = jnp.asarray(np.random.default_rng(1).normal(0, 1, (8, VOCAB)), jnp.float32)
    whole = np.asarray(sample(logits, rows(8)))
    order = np.array([5, 2, 7])
    part = SamplingRows(*(x[order] for x in rows(8)))
    np.testing.assert_array_equal(np.asarray(sample(logits[order], part)), whole[order])


def test_greedy_and_drawn_rows_mix() -> None:
    logits = jnp.broadcast_to(jnp.asarray(LOGITS), (64, VOCAB))
    settings = rows(64)._replace(temperature=jnp.tile(jnp.array([0.0, 1.0]), 32))
    ids = np.asarray(sample(logits, settings))
    assert set(ids[::2]) == {LOGITS.argmax()}
    assert len(set(ids[1::2])) > 5


def test_seeds_differ_in_their_high_word_too_and_positions_count() -> None:
    logits = jnp.zeros((3, 4096))
    base = rows(3)._replace(seed=jnp.zeros((3, 2), jnp.uint32))
    settings = base._replace(
        seed=base.seed.at[1, 0].set(1), position=jnp.array([0, 0, 1], jnp.int32)
    )
    assert len(set(np.asarray(sample(logits, settings)).tolist())) == 3


def test_threshold_keeps_ties_and_is_exact() -> None:
    weights = jnp.array([[0.5, 0.25, 0.25, 0.125, 0.0625]])
    ones = jnp.ones_like(weights)
    for k, kept in [(1, 1), (2, 3), (3, 3), (4, 4), (5, 5), (9, 5)]:
        out = _keep_at_least(weights, ones, jnp.array([float(k)]))
        assert int((out > 0).sum()) == kept, k
