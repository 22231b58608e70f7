"""x @ w.T in float32, for few rows and for many.

XLA multiplies few rows at a fraction of the memory's and the processor's speed, and in an order of
sums that depends on how many they are. Here every element is a sum of its own over one row of x and
one of w, in an order that depends on their length alone.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from numba import carray, cfunc, njit

from cpu_kernels import ffi
from cpu_kernels.threads import PARTS

NAME = "jaxserve_linear"

# Sums may be vectorised; NaN and infinity stay what they are.
FAST = {"reassoc", "contract", "nsz"}
_ROWS_OF = 32768  # elements of x that stay in the second cache while w passes


@njit(fastmath=FAST, cache=True)
def dot_2x4(
    x0: np.ndarray,
    x1: np.ndarray,
    w0: np.ndarray,
    w1: np.ndarray,
    w2: np.ndarray,
    w3: np.ndarray,
) -> tuple[float, float, float, float, float, float, float, float]:
    """All eight products of two rows and four, each [I]: as many sums as hide a multiply-add's
    latency, and fit into registers."""
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = np.float32(0)
    for i in range(x0.shape[0]):
        a, b = x0[i], x1[i]
        a0 += a * w0[i]
        a1 += a * w1[i]
        a2 += a * w2[i]
        a3 += a * w3[i]
        b0 += b * w0[i]
        b1 += b * w1[i]
        b2 += b * w2[i]
        b3 += b * w3[i]
    return a0, a1, a2, a3, b0, b1, b2, b3


@njit(cache=True)
def _is_zero(row: np.ndarray) -> bool:
    for value in row:
        if value != 0:
            return False
    return True


@njit(cache=True)
def _multiply(x: np.ndarray, w: np.ndarray, out: np.ndarray) -> None:
    """x [T, I] @ w [O, I].T -> out [T, O]. Rows of zeros, such as padding is, cost nothing."""
    rows, last = x.shape[0], w.shape[0] - 1
    tall = max(2, _ROWS_OF // x.shape[1] // 2 * 2)
    for first in range(0, rows, tall):
        end = min(first + tall, rows)
        while end > first and _is_zero(x[end - 1]):
            end -= 1
            out[end] = 0
        for o in range(0, last + 1, 4):
            # Past the end: the last row once more.
            o1, o2, o3 = min(o + 1, last), min(o + 2, last), min(o + 3, last)
            w0, w1, w2, w3 = w[o], w[o1], w[o2], w[o3]
            for t in range(first, end, 2):
                u = min(t + 1, end - 1)
                a, b = out[t], out[u]
                a[o], a[o1], a[o2], a[o3], b[o], b[o1], b[o2], b[o3] = dot_2x4(
                    x[t], x[u], w0, w1, w2, w3
                )


@cfunc(ffi.HANDLER, cache=True)
def _handler(address: int) -> int:
    frame = ffi.opened(address)
    if ffi.asks_version(frame):
        return 0
    x, x_shape = ffi.argument(frame, 0)
    w, w_shape = ffi.argument(frame, 1)
    first, _ = ffi.argument(frame, 2)
    out, shape = ffi.result(frame, 0)
    inputs, begin = x_shape[1], carray(first, 1, np.int32)[0]
    _multiply(
        carray(x, (x_shape[0], inputs), np.float32),
        carray(w, (w_shape[0], inputs), np.float32)[begin : begin + shape[1]],
        carray(out, (shape[0], shape[1]), np.float32),
    )
    return 0


ffi.register(NAME, _handler)


def linear(x: jax.Array, w: jax.Array) -> jax.Array:
    """x [T, I] @ w [O, I].T -> [T, O], all float32; a row's bits depend on that row and w alone."""
    if not x.dtype == w.dtype == jnp.float32:
        raise ValueError(f"x and w must be float32; got {x.dtype} and {w.dtype}")
    bounds = [len(w) * part // PARTS // 4 * 4 for part in range(PARTS)] + [len(w)]
    parts = []
    for begin, end in zip(bounds, bounds[1:], strict=False):
        if begin < end:
            part = jax.ShapeDtypeStruct((x.shape[0], end - begin), jnp.float32)
            call = jax.ffi.ffi_call(NAME, part)
            parts.append(call(x, w, np.array([begin], np.int32)))
    return jnp.concatenate(parts, axis=1)
