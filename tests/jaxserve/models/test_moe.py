"""Experts: which of them are read for which tokens; the goldens don't show that."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.models.config import MoEConfig
from jaxserve.models.moe import Gated, MoE

HIDDEN, EXPERTS = 16, 8
MOST = 200  # tokens; each number of them is compiled for


def layer(renormalize: bool = True) -> MoE:
    config = MoEConfig(EXPERTS, 2, 24, renormalize)
    moe = MoE(HIDDEN, config, jnp.dtype(jnp.float32), unit=Gated("silu"))
    random = np.random.default_rng(0)
    for weight in (moe.router, moe.gate_up, moe.down):
        weight[...] = jnp.asarray(random.standard_normal(weight.shape), jnp.float32)
    return moe


def plain(moe: MoE, x: np.ndarray) -> np.ndarray:
    """Token by token, expert by expert."""
    router, gate_up, down = (np.asarray(w[...]) for w in (moe.router, moe.gate_up, moe.down))
    out = np.zeros_like(x)
    for token, row in enumerate(x):
        scores = np.exp(router @ row)
        scores /= scores.sum()
        best = np.argsort(-scores)[:2]
        total = scores[best].sum() if moe.config.renormalize else 1.0
        for e in best:
            gate, up = row @ gate_up[e, :, 0], row @ gate_up[e, :, 1]
            out[token] += scores[e] / total * ((gate / (1 + np.exp(-gate)) * up) @ down[e])
    return out


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("tokens", [1, pytest.param(7, marks=pytest.mark.slow), MOST])
def test_against_a_loop_over_tokens(tokens: int, renormalize: bool) -> None:
    moe = layer(renormalize)
    x = np.random.default_rng(tokens).standard_normal((tokens, HIDDEN)).astype(np.float32)
    got = np.asarray(moe(jnp.asarray(x), jnp.int32(tokens)))
    np.testing.assert_allclose(got, plain(moe, x), rtol=1e-4, atol=1e-4)


def test_padding_reaches_no_expert() -> None:
    """The experts that padding tokens would have chosen are NaN: reading one would show."""
    moe = layer()
    x = jnp.asarray(np.random.default_rng(1).standard_normal((MOST, HIDDEN)), jnp.float32)
    _, chosen = jax.lax.top_k(x[:1] @ moe.router[...].T, 2)
    unread = np.setdiff1d(np.arange(EXPERTS), np.asarray(chosen))
    expected = np.asarray(moe(x, jnp.int32(1)))
    moe.down[...] = moe.down[...].at[unread].set(jnp.nan)
    got = np.asarray(moe(x, jnp.int32(1)))
    np.testing.assert_array_equal(got, expected)
    assert (got[1:] == 0).all()


def test_a_token_does_not_depend_on_the_others() -> None:
    moe = layer()
    x = jnp.asarray(np.random.default_rng(2).standard_normal((MOST, HIDDEN)), jnp.float32)
    alone = moe(x, jnp.int32(3))
    together = moe(x, jnp.int32(MOST))
    np.testing.assert_array_equal(np.asarray(alone)[:3], np.asarray(together)[:3])
