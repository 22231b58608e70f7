"""Floats to codes, by rounding to the nearest."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from jaxserve.config import Quantization
from jaxserve.models.weights.inputs import LARGEST
from jaxserve.models.weights.scaled import Scaled
from jaxserve.models.weights.weight import Weight

GROUP = 128  # inputs that share a scale of int4


@partial(jax.jit, static_argnames="kind")
def quantize(values: jax.Array, kind: Quantization) -> Weight:
    """A matrix [*O, I] in few bits.

    Args:
        kind: fp8 and int8 have a scale an output; int4 a scale and a zero for 128 inputs of an
            output.
    """
    values = values.astype(jnp.float32)
    if kind == "int4":
        return _int4(values)
    largest = jnp.max(jnp.abs(values), axis=-1, keepdims=True)
    if kind == "int8":
        scales = _scales(largest, LARGEST["int8"])
        codes = jnp.round(values / scales).astype(jnp.int8)
        return Weight({"codes": codes, "scales": scales}, Scaled("int8"))
    scales = _scales(largest, LARGEST["float8_e4m3fn"])
    # A quotient may be rounded past the largest code, which would be NaN.
    quotients = jnp.clip(values / scales, -LARGEST["float8_e4m3fn"], LARGEST["float8_e4m3fn"])
    arrays = {"codes": quotients.astype(jnp.float8_e4m3fn), "scales": scales}
    return Weight(arrays, Scaled("fp8"))


def _scales(largest: jax.Array, code: float) -> jax.Array:
    return jnp.where(largest == 0, 1, largest / code)


def _int4(values: jax.Array) -> Weight:
    inputs = values.shape[-1]
    count = -(-inputs // GROUP)
    # What is missing from the last group repeats its last number, which changes no extreme.
    padding = [(0, 0)] * (values.ndim - 1) + [(0, count * GROUP - inputs)]
    padded = jnp.pad(values, padding, mode="edge").reshape(*values.shape[:-1], count, GROUP)
    low = jnp.minimum(jnp.min(padded, axis=-1), 0)
    high = jnp.maximum(jnp.max(padded, axis=-1), 0)
    scales = _scales(high - low, 15).astype(jnp.float16).astype(jnp.float32)
    scales = jnp.maximum(scales, jnp.finfo(jnp.float16).tiny)
    zeros = jnp.clip(jnp.round(-low / scales), 0, 15)
    codes = jnp.clip(jnp.round(padded / scales[..., None]) + zeros[..., None], 0, 15)
    codes = codes.reshape(*values.shape[:-1], -1)[..., :inputs].astype(jnp.uint8)
    arrays = {
        "codes": codes[..., ::2] | codes[..., 1::2] << 4,
        "scales": scales.astype(jnp.float16),
        "zeros": (zeros - 8).astype(jnp.int8),
    }
    return Weight(arrays, Scaled("int4", GROUP))
