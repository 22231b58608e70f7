"""MXFP4 (OCP Microscaling Formats 1.0, sections 5 and 6): 4-bit floats in
blocks of 32, each with a power of two as scale."""

from __future__ import annotations

import ml_dtypes
import numpy as np

_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = np.array([*_POSITIVE, *(-v for v in _POSITIVE)], np.float32)
# The two values of each byte, that of the low nibble first.
_PAIRS = np.stack([_VALUES[np.arange(256) & 15], _VALUES[np.arange(256) >> 4]], axis=-1)


def dequantize(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The values as bfloat16, which holds them exactly.

    Args:
        blocks: [..., B, 16] uint8, two values a byte.
        scales: [..., B] uint8, exponents biased by 127.

    Returns:
        [..., 32 * B].
    """
    out = np.empty((*blocks.shape[:-1], 32), ml_dtypes.bfloat16)
    for i in np.ndindex(blocks.shape[:1]):  # one expert at a time, to bound the float32 copy
        values = _PAIRS[blocks[i]].reshape(*blocks.shape[1:-1], 32)
        out[i] = np.ldexp(values, scales[i].astype(np.int32)[..., None] - 127)
    return out.reshape(*blocks.shape[:-2], -1)
