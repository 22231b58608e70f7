"""The device sampler against exact probabilities and plain definitions."""

from __future__ import annotations

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.sampling.logit_processors import SamplingTables, bias_row, counts_row
from jaxserve.sampling.logprobs import Logprobs, token_logprobs
from jaxserve.sampling.masks import pack_mask
from jaxserve.sampling.params import SamplingParams
from jaxserve.sampling.row_settings import SamplingRows, pack
from jaxserve.sampling.sampler import _keep_at_least
from jaxserve.sampling.sampler import sample as sample_with_tables

VOCAB = 64
DRAWS = 20_000
CHI_SQUARE_63_P_1E_6 = 139.0  # upper bound on 63 degrees of freedom, p = 1e-6 (scipy.stats.chi2)

LOGITS = np.random.default_rng(0).normal(0, 2, VOCAB).astype(np.float32)
LIKELIEST = np.argsort(-LOGITS).tolist()
PROMPT, OUTPUTS = LIKELIEST[:8:2], LIKELIEST[1:4] * 2
BIAS = {LIKELIEST[0]: -2.0, LIKELIEST[9]: 3.0, LIKELIEST[30]: 1.5}
ALLOWED = np.arange(VOCAB) % 3 > 0
TABLES = SamplingTables(
    counts_row(PROMPT, OUTPUTS, VOCAB)[None], pack_mask(ALLOWED)[None], bias_row(BIAS, VOCAB)[None]
)


def rows(n: int, **settings: float) -> SamplingRows:
    def full(name: str, default: float, dtype: type = jnp.float32) -> jax.Array:
        return jnp.full(n, settings.get(name, default), dtype)

    seeds = jnp.stack([jnp.zeros(n, jnp.uint32), jnp.arange(n, dtype=jnp.uint32)], axis=1)
    return SamplingRows(
        slot=jnp.zeros(n, jnp.int32),
        position=jnp.zeros(n, jnp.int32),
        seed=seeds,
        top_k=full("top_k", 0, jnp.int32),
        num_logprobs=jnp.full(n, -1, jnp.int32),
        masked=full("masked", False, bool),
        biased=full("biased", False, bool),
        temperature=full("temperature", 1.0),
        top_p=full("top_p", 1.0),
        min_p=full("min_p", 0.0),
        typical_p=full("typical_p", 1.0),
        repetition=full("repetition", 1.0),
        presence=full("presence", 0.0),
        frequency=full("frequency", 0.0),
    )


@jax.jit
def sample(logits: jax.Array, settings: SamplingRows) -> jax.Array:
    vocab = logits.shape[-1]
    tables = TABLES if vocab == VOCAB else SamplingTables.allocate(1, vocab)
    return sample_with_tables(logits, settings, SamplingTables(*map(jnp.asarray, tables)))


def processed(
    biased: bool = False,
    masked: bool = False,
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
) -> np.ndarray:
    """The logits that are drawn from, in float64: bias and mask, then penalties."""
    logits = LOGITS.astype(np.float64)
    if biased:
        logits[list(BIAS)] += list(BIAS.values())
    if masked:
        logits[~ALLOWED] = -np.inf
    for token in {*PROMPT, *OUTPUTS}:
        logits[token] *= 1 / repetition if logits[token] > 0 else repetition
    for token in set(OUTPUTS):
        logits[token] -= presence + frequency * OUTPUTS.count(token)
    return logits


def expected(
    temperature: float = 1.0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    top_k: int = 0,
    typical_p: float = 1.0,
    **processors: float,
) -> np.ndarray:
    """The definition, in float64: temperature, min_p, top_k, top_p, typical_p, renormalise."""
    p = np.exp(processed(**processors) / temperature)
    p /= p.sum()
    p[p < min_p * p.max()] = 0
    order = np.argsort(-p)
    if top_k:
        p[order[top_k:]] = 0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= top_p]] = 0
    p /= p.sum()
    if typical_p < 1:
        surprise = np.full(VOCAB, np.inf)
        surprise[p > 0] = -np.log(p[p > 0])
        entropy = (p[p > 0] * surprise[p > 0]).sum()
        order = np.argsort(np.abs(surprise - entropy))
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= typical_p]] = 0
    return p / p.sum()


ALONE = {
    "temperature": 1.7,
    "top_k": 5,
    "top_p": 0.8,
    "min_p": 0.1,
    "typical_p": 0.6,
    "repetition": 1.4,
    "presence": 1.0,
    "frequency": 0.6,
    "biased": True,
    "masked": True,
}
PAIRS = itertools.combinations(ALONE.items(), 2)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.5},
        *({name: value} for name, value in ALONE.items()),
        *(pytest.param(dict(pair), marks=pytest.mark.slow) for pair in PAIRS),
        {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.9},
    ],
    ids=str,
)
def test_draws_follow_the_distribution(settings: dict[str, float]) -> None:
    logits = jnp.broadcast_to(jnp.asarray(LOGITS), (DRAWS, VOCAB))
    ids = np.asarray(sample(logits, rows(DRAWS, **settings)))
    counts = np.bincount(ids, minlength=VOCAB)
    p = expected(**settings)
    assert counts[p == 0].sum() == 0
    kept = p > 0
    chi_square = ((counts - DRAWS * p)[kept] ** 2 / (DRAWS * p[kept])).sum()
    assert chi_square < CHI_SQUARE_63_P_1E_6


@pytest.mark.slow
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


def test_a_draw_does_not_depend_on_the_place_in_the_batch() -> None:
    logits = jnp.asarray(np.random.default_rng(1).normal(0, 1, (8, VOCAB)), jnp.float32)
    whole = np.asarray(sample(logits, rows(8)))
    order = np.array([5, 2, 7])
    part = jax.tree.map(lambda x: x[order], rows(8))
    np.testing.assert_array_equal(np.asarray(sample(logits[order], part)), whole[order])


def test_greedy_and_drawn_rows_mix() -> None:
    logits = jnp.broadcast_to(jnp.asarray(LOGITS), (DRAWS, VOCAB))
    settings = rows(DRAWS)._replace(temperature=jnp.tile(jnp.array([0.0, 1.0]), DRAWS // 2))
    ids = np.asarray(sample(logits, settings))
    assert set(ids[::2]) == {LOGITS.argmax()}
    assert len(set(ids[1::2])) > 5


@pytest.mark.slow
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
        out = _keep_at_least(weights, weights, ones, jnp.array([float(k)]))
        assert int((out > 0).sum()) == kept, k


def test_rows_whose_logits_are_not_finite_get_minus_one() -> None:
    logits = np.tile(LOGITS, (8, 1))
    logits[1, 5], logits[2, 7], logits[3] = np.nan, np.inf, -np.inf
    for temperature in (0.0, 1.0):
        ids = np.asarray(sample(jnp.asarray(logits), rows(8, temperature=temperature)))
        assert ids[1:4].tolist() == [-1, -1, -1]
        assert (ids[[0, 4, 5, 6, 7]] >= 0).all()


@pytest.mark.parametrize("smallest", [{"temperature": 1e-30}, {"top_p": 1e-40}, {"min_p": 1.0}])
def test_the_smallest_settings_are_greedy_and_nothing_overflows(smallest: dict[str, float]) -> None:
    for scale in (1.0, 1e4):
        logits = jnp.asarray(scale * LOGITS)[None]
        assert int(sample(logits, rows(1, **smallest))[0]) == LOGITS.argmax()


def test_the_smallest_typical_p_keeps_the_most_typical_token() -> None:
    logits = jnp.asarray(LOGITS)[None]
    for typical_p in (1e-40, 1e-8):
        kept = expected(typical_p=typical_p).argmax()
        assert int(sample(logits, rows(1, typical_p=typical_p))[0]) == kept


def test_a_temperature_too_small_for_the_device_is_greedy() -> None:
    _, floats = pack(SamplingParams(temperature=1e-40), 0, False)
    assert floats[0] == 0.0


@pytest.mark.slow
def test_rows_handled_one_by_one_draw_what_they_draw_together() -> None:
    """As on a CPU; some rows have no settings."""
    n = 12
    settings = rows(n)._replace(
        temperature=jnp.arange(n, dtype=jnp.float32) % 3 / 2,
        top_k=jnp.arange(n, dtype=jnp.int32) % 5,
        top_p=jnp.where(jnp.arange(n) % 4 == 1, 0.7, 1.0),
        masked=jnp.arange(n) % 4 == 2,
        presence=jnp.where(jnp.arange(n) % 6 == 3, 1.5, 0.0),
    )
    logits = jnp.asarray(np.random.default_rng(1).normal(0, 2, (n, VOCAB)), jnp.float32)
    logits = logits.at[5, 3].set(jnp.nan)
    tables = SamplingTables(*map(jnp.asarray, TABLES))
    wanted = jnp.arange(n) % 2 == 0

    @partial(jax.jit, static_argnums=0)
    def step(one_by_one: bool) -> tuple[jax.Array, Logprobs[jax.Array]]:
        ids = sample_with_tables(logits, settings, tables, one_by_one)
        return ids, token_logprobs(logits, jnp.maximum(ids, 0), wanted, one_by_one)

    (ids, logprobs), (alone, own) = step(False), step(True)
    assert ids[5] == -1
    np.testing.assert_array_equal(alone, ids)
    for together, single in zip(logprobs, own, strict=True):
        np.testing.assert_allclose(single[wanted], together[wanted], rtol=1e-6)
        assert not np.asarray(single)[~wanted].any()


@pytest.mark.parametrize("vocab", [1, 127, 128, 129, 1000, 49152])
def test_greedy_takes_the_first_of_equal_logits_wherever_it_is(vocab: int) -> None:
    random = np.random.default_rng(vocab)
    logits = random.integers(0, 5, (40, vocab)).astype(np.float32)
    logits[:20] = -np.inf
    likeliest = random.integers(0, vocab, 20)
    logits[np.arange(20), likeliest] = random.standard_normal(20)
    want = np.argmax(logits, axis=-1)
    np.testing.assert_array_equal(sample(jnp.asarray(logits), rows(40, temperature=0)), want)
    logits[np.arange(20), random.integers(0, vocab, 20)] = np.nan
    np.testing.assert_array_equal(
        sample(jnp.asarray(logits), rows(40, temperature=0))[:20], [-1] * 20
    )
