"""Sampling settings of a row: packed into two vectors on the host, unpacked on the device."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.sampling.guesses import GuessRows
from jaxserve.sampling.params import SamplingParams

NUM_INTS = 6
NUM_FLOATS = 7
NUM_LOGPROBS = 3  # column of the ints
GREEDY_INTS = (0, 0, 0, -1, 0, 0)
LEAST_TEMPERATURE = 1e-30  # smaller ones are greedy: a device may flush them to 0, and divide by 0
GREEDY_FLOATS = (0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0)


class SamplingRows(NamedTuple):
    """Settings of S rows, one array a setting; [S] unless stated otherwise.

    Args:
        slot: int32, the row of the SamplingTables.
        position: int32, index of the output token drawn.
        seed: [S, 2] uint32, high and low word.
        top_k: int32; 0 keeps all.
        num_logprobs: int32; negative for none.
        masked, biased: bool, whether the slot's mask or bias row applies.
        temperature: float32; 0 is greedy.
        top_p, min_p, typical_p: float32; 1, 0 and 1 keep all.
        repetition, presence, frequency: float32 penalties; 1, 0 and 0 change nothing.
        guesses: of steps that verify guesses.
    """

    slot: jax.Array
    position: jax.Array
    seed: jax.Array
    top_k: jax.Array
    num_logprobs: jax.Array
    masked: jax.Array
    biased: jax.Array
    temperature: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    typical_p: jax.Array
    repetition: jax.Array
    presence: jax.Array
    frequency: jax.Array
    guesses: GuessRows[jax.Array] | None = None

    @property
    def penalised(self) -> jax.Array:
        """[S] bool, rows with a penalty."""
        return (self.repetition != 1) | (self.presence != 0) | (self.frequency != 0)

    @property
    def processed(self) -> jax.Array:
        """[S] bool, rows whose logits are changed before the temperature."""
        return self.penalised | self.masked | self.biased


def is_penalised(params: SamplingParams) -> bool:
    """Whether a request has a penalty, and so needs token counts."""
    return (
        params.repetition_penalty != 1
        or params.presence_penalty != 0
        or params.frequency_penalty != 0
    )


def pack(params: SamplingParams, index: int, masked: bool) -> tuple[np.ndarray, np.ndarray]:
    """Settings of output `index` of a request: [NUM_INTS] int32 and [NUM_FLOATS] float32."""
    seed = ((params.seed or 0) + index) & 0xFFFF_FFFF_FFFF_FFFF
    logprobs = -1 if params.logprobs is None else params.logprobs
    words = np.array([seed >> 32, seed & 0xFFFF_FFFF], np.uint32).view(np.int32)
    ints = [*words, params.top_k, logprobs, masked, bool(params.logit_bias)]
    temperature = params.temperature if params.temperature >= LEAST_TEMPERATURE else 0.0
    floats = [
        *(temperature, params.top_p, params.min_p, params.typical_p),
        *(params.repetition_penalty, params.presence_penalty, params.frequency_penalty),
    ]
    return np.array(ints, np.int32), np.array(floats, np.float32)


def unpack(
    ints: jax.Array, floats: jax.Array, slot: jax.Array, position: jax.Array
) -> SamplingRows:
    """Settings from ints [S, NUM_INTS] and floats [S, NUM_FLOATS]."""
    seed = jax.lax.bitcast_convert_type(ints[:, :2], jnp.uint32)
    top_k, num_logprobs, masked, biased = ints[:, 2:].T
    return SamplingRows(
        slot, position, seed, top_k, num_logprobs, masked != 0, biased != 0, *floats.T
    )
