"""Mixture of experts: tokens are sorted by expert, and each expert computes its own tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxserve.models.config import Activation, MoEConfig
from jaxserve.models.layers import ACTIVATIONS, GatedMLP, matrix, param
from jaxserve.models.router import choose_experts
from jaxserve.models.weights import expert_linear, experts_linear, for_rows, linear

TILE = 16  # rows of one CPU matmul; constant, since the bits of its results may depend on it


class GatedUnit(Protocol):
    """Joins an expert's gate and up projections, both [R, F], into [R, F]."""

    def __call__(self, gate: jax.Array, up: jax.Array, /) -> jax.Array: ...


@dataclass(frozen=True)
class Gated:
    """activation(gate) * up (Shazeer 2020)."""

    activation: Activation

    def __call__(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        return ACTIVATIONS[self.activation](gate) * up


class MoE(nnx.Module):
    """A router, and its experts' gated linear units (Shazeer et al. 2017; Fedus et al. 2021).

    Beside them may be an MLP that all tokens go through (DeepSeekMoE, Dai et al. 2024).

    models/router.py chooses each token's experts and weights their outputs. Padding tokens go to no
    expert, so that none computes them. The input dimension of the experts' float weights comes
    first, as ragged_dot needs it.
    """

    def __init__(
        self,
        hidden: int,
        config: MoEConfig,
        dtype: jnp.dtype,
        *,
        unit: GatedUnit,
        bias: bool = False,
        shared: GatedMLP | None = None,
    ) -> None:
        experts, size = config.num_experts, config.intermediate_size
        self.config = config
        self.unit = unit
        self.router = param((experts, hidden), ("expert", "embed"), dtype)
        self.gate_up = matrix(
            (experts, hidden, 2, size), ("expert", "embed", None, "mlp"), dtype, (-3,)
        )
        self.down = matrix((experts, size, hidden), ("expert", "mlp", "embed"), dtype, (-2,))
        self.router_bias = param((experts,), ("expert",), dtype) if bias else None
        # Float32 in the files, and so small that its rounding would change choices.
        self.choice_bias = (
            param((experts,), ("expert",), jnp.dtype(jnp.float32))
            if config.scores == "sigmoid"
            else None
        )
        self.shared = shared
        self.shared_gate = param((hidden,), ("embed",), dtype) if config.shared_gate else None
        self.gate_up_bias = (
            param((experts, 2, size), ("expert", None, "mlp"), dtype) if bias else None
        )
        self.down_bias = param((experts, hidden), ("expert", "embed"), dtype) if bias else None

    def __call__(self, x: jax.Array, num_tokens: jax.Array) -> jax.Array:  # [T, E] -> [T, E]
        """Args: num_tokens: the tokens after these are padding; no expert computes them."""
        tokens, hidden = x.shape
        count = self.config.experts_per_token
        weights, chosen = self._route(x)  # [T, N], N experts a token
        real = jnp.arange(tokens) < num_tokens
        experts = jnp.where(real[:, None], chosen, self.config.num_experts).reshape(-1)  # [T * N]
        order = jnp.argsort(experts, stable=True)
        sizes = jnp.bincount(experts, length=self.config.num_experts)
        rows = self._experts(x, order // count, experts[order], sizes)
        out = jnp.zeros((tokens * count, hidden), rows.dtype).at[order].set(rows)
        out = out.reshape(tokens, count, hidden).astype(jnp.float32) * weights[..., None]
        routed = jnp.where(real[:, None], out.sum(axis=1), 0).astype(x.dtype)
        return routed if self.shared is None else routed + self._shared(x, self.shared)

    def _shared(self, x: jax.Array, mlp: GatedMLP) -> jax.Array:  # [T, E] -> [T, E]
        if self.shared_gate is None:
            return mlp(x)
        return jax.nn.sigmoid(linear(x, self.shared_gate[...][None])) * mlp(x)

    def _route(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Weights float32 and ids of each token's experts, both [T, N]."""
        logits = linear(x, self.router[...], jnp.dtype(jnp.float32))
        if self.router_bias is not None:
            logits += self.router_bias[...]
        bias = None if self.choice_bias is None else self.choice_bias[...]
        return choose_experts(logits, self.config, bias)

    def _experts(
        self, x: jax.Array, tokens: jax.Array, experts: jax.Array, sizes: jax.Array
    ) -> jax.Array:
        """The experts' outputs [R, E] for rows of x [T, E] in the order of their experts [R].

        Args:
            tokens: [R], each row's token.
            sizes: [X] rows of each of the X experts; the outputs of rows after those are arbitrary.
        """
        if jax.default_backend() == "cpu":
            # XLA's ragged_dot multiplies every row with every expert there.
            return self._tiles(x, tokens, sizes)
        own = jnp.minimum(experts, self.config.num_experts - 1)
        gate_up, down = (for_rows(w.get_value(), tokens) for w in (self.gate_up, self.down))
        projected = experts_linear(x[tokens], gate_up, sizes, own)
        if self.gate_up_bias is not None:
            projected += self.gate_up_bias[...].reshape(self.config.num_experts, -1)[own]
        unit = self.unit(*jnp.split(projected, 2, axis=-1))
        out = experts_linear(unit, down, sizes, own)
        return out if self.down_bias is None else out + self.down_bias[...][own]

    def _tiles(self, x: jax.Array, tokens: jax.Array, sizes: jax.Array) -> jax.Array:
        """A loop over tiles of rows, each of one expert. It runs once a tile, and
        doesn't read the weights of an expert without rows. Arguments as of _experts()."""
        rows = len(tokens)
        tiles = -(-sizes // TILE)
        tile_ends, row_ends = jnp.cumsum(tiles), jnp.cumsum(sizes)
        # The last tile may reach past the end.
        padded = jnp.pad(x[tokens], ((0, TILE), (0, 0)))
        numbers = jnp.pad(tokens, (0, TILE))

        def step(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            i, out = carry
            expert = jnp.sum(tile_ends <= i, dtype=jnp.int32)
            nth = i - (tile_ends[expert] - tiles[expert])
            first = row_ends[expert] - sizes[expert] + nth * TILE
            own, mine = (lax.dynamic_slice_in_dim(a, first, TILE) for a in (padded, numbers))
            result = self._expert(own, mine, expert)
            # Rows of the experts after this one are written again by their own tiles.
            return i + 1, lax.dynamic_update_slice_in_dim(out, result, first, 0)

        init = (jnp.int32(0), jnp.zeros_like(padded))
        return lax.while_loop(lambda carry: carry[0] < tile_ends[-1], step, init)[1][:rows]

    def _expert(  # [R, E] -> [R, E]
        self, x: jax.Array, tokens: jax.Array, expert: jax.Array
    ) -> jax.Array:
        gate_up, down = (for_rows(w.get_value(), tokens) for w in (self.gate_up, self.down))
        projected = expert_linear(x, gate_up, expert)
        if self.gate_up_bias is not None:
            projected += self.gate_up_bias[...][expert].reshape(-1)
        unit = self.unit(*jnp.split(projected, 2, axis=-1))
        out = expert_linear(unit, down, expert)
        return out if self.down_bias is None else out + self.down_bias[...][expert]
