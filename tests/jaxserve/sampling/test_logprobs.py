"""Logprobs of tokens, against NumPy in float64."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxserve.sampling.logprobs import logprobs_of


def test_tokens_in_and_beyond_the_vocabulary() -> None:
    """A prompt may hold ids of the model's padding rows; they have no probability, and no NaN."""
    logits = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    found = logprobs_of(jnp.asarray(logits), jnp.array([0, 39, 40]))
    wide = logits.astype(np.float64)
    total = np.log(np.exp(wide).sum(axis=1))
    expected = [wide[0, 0] - total[0], wide[1, 39] - total[1], -np.inf]
    np.testing.assert_allclose(found.chosen, expected, rtol=1e-5)
    ranks = [1 + (wide[0] > wide[0, 0]).sum(), 1 + (wide[1] > wide[1, 39]).sum(), 41]
    assert found.rank.tolist() == ranks
