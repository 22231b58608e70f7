"""Products with stored matrices on an NVIDIA GPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaxserve.models.weights.scaled import Scaled
from jaxserve.models.weights.weight import Weight

# Up to so many rows a product takes the time of reading the matrix, so it is read as it is stored.
# From there on it takes the time of multiplying, and the matrix is widened first, once.
MOST_ROWS = 256


def has_fp8_units() -> bool:
    """Whether this process's GPU multiplies FP8 numbers: from compute capability 8.9 on."""
    capability = getattr(jax.local_devices()[0], "compute_capability", "0.0")
    major, minor = map(int, str(capability).split("."))
    return (major, minor) >= (8, 9)


def of_codes(x: jax.Array, weight: Weight) -> jax.Array | None:  # [T, I] -> [T, O]
    """The product of x, rounded as the checkpoint says, with a matrix of codes of the same type, by
    the GPU's units for that type; None if it has none, or if scales aren't one a token and output.

    FP8 sums are bfloat16 before they are scaled, if x is; otherwise, and of int8, they are exact to
    float32.
    """
    scheme, rounding = weight.scheme, weight.rounding
    if rounding is None or not isinstance(scheme, Scaled) or "zeros" in weight.arrays:
        return None
    if scheme.group or "groups" in weight.arrays or rounding.group:
        return None
    if (scheme.codes, rounding.dtype) == ("fp8", "float8_e4m3fn") and has_fp8_units():
        sums = jnp.bfloat16 if x.dtype == jnp.bfloat16 else jnp.float32
    elif (scheme.codes, rounding.dtype) == ("int8", "int8"):
        sums = jnp.int32
    else:
        return None
    codes, scales = rounding.codes(x, weight.arrays.get("input_scale"))
    matrix = weight.arrays["codes"].reshape(-1, x.shape[-1])
    product = lax.dot_general(
        codes.reshape(x.shape), matrix, (((1,), (1,)), ((), ())), preferred_element_type=sums
    ).astype(jnp.float32)
    outputs = weight.arrays["scales"].astype(jnp.float32).reshape(-1)
    return (product * scales.reshape(-1, 1) * outputs).astype(x.dtype)


def of_packed(
    x: jax.Array, weight: Weight, sizes: jax.Array | None = None, interpret: bool = False
) -> jax.Array | None:  # [R, I] -> [R, O]
    """The product of x with a matrix that is widened in registers; None if the kernel doesn't take
    its scheme, or if there are so many rows that it should be widened before.

    Args:
        sizes: [X] rows of each expert, in order, whose matrices the first dimension of the weight
            counts; the products of the rows after those are arbitrary. None: it has none.
        interpret: run the kernel on a CPU.
    """
    from pallas_kernels import stored_matmul, takes_stored

    scheme, arrays, inputs = weight.scheme, weight.arrays, x.shape[-1]
    if not isinstance(scheme, Scaled) or "groups" in arrays:
        return None
    if not takes_stored(scheme.codes, inputs, scheme.group):
        return None
    if sizes is None and len(x) > MOST_ROWS:
        return None
    experts = 1 if sizes is None else len(sizes)
    flat = {
        name: arrays[name].reshape(experts, -1, arrays[name].shape[-1])
        for name in scheme.trailing
        if name in arrays
    }
    return stored_matmul(
        x,
        flat["codes"],
        flat["scales"],
        flat.get("zeros"),
        kind=scheme.codes,
        group=scheme.group,
        sizes=sizes,
        interpret=interpret,
    )
