"""Which experts compute a token, and the weights of their outputs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaxserve.models.config import MoEConfig


def choose_experts(
    logits: jax.Array, config: MoEConfig, bias: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Weights and ids of each token's experts, both [T, N], for router logits [T, X] float32.

    Args:
        bias: [X], added to scores for the choice alone (DeepSeek-AI 2024, "DeepSeek-V3", 2.1.2).
    """
    if config.scores == "softmax":
        scores = jax.nn.softmax(logits, axis=-1)
    else:
        scores = jax.nn.sigmoid(logits)
    ranked = scores if bias is None else scores + bias
    if config.groups > 1:
        ranked = _of_best_groups(ranked, config)
    _, chosen = lax.top_k(ranked, config.experts_per_token)
    weights = jnp.take_along_axis(scores, chosen, axis=-1)
    if config.renormalize:
        weights /= weights.sum(axis=-1, keepdims=True)
    return weights * config.scale, chosen


def _of_best_groups(ranked: jax.Array, config: MoEConfig) -> jax.Array:
    """Scores [T, X], -inf outside of the best groups: by their largest score, or by the sum of the
    two largest where scores are sigmoids (DeepSeek V2 and V3)."""
    grouped = ranked.reshape(len(ranked), config.groups, -1)
    if config.scores == "softmax":
        worth = grouped.max(axis=-1)
    else:
        worth = lax.top_k(grouped, 2)[0].sum(axis=-1)
    _, kept = lax.top_k(worth, config.kept_groups)  # [T, kept groups]
    is_kept = jax.nn.one_hot(kept, config.groups, dtype=bool).any(axis=1)
    return jnp.where(is_kept[..., None], grouped, -jnp.inf).reshape(ranked.shape)
