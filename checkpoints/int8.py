"""Weights in 8 bits: symmetric, one scale an output channel; for storage, not for arithmetic."""

from __future__ import annotations

import numpy as np

SUFFIX = ".scale"  # of the tensor beside the weight
# Dimensions that a matrix contracts, from the last; the others are its output channels. Tables,
# heads, routers, norms and biases are small, or too sensitive.
_CONTRACTED = {
    "attention.qkv": (-1,),  # [K, G+2, D, E]
    "attention.out": (-2, -1),  # [E, H, D]
    "mlp.gate_up": (-1,),  # [2, F, E]
    "mlp.down": (-1,),  # [E, F]
    "moe.gate_up": (-3,),  # [X, E, 2, F]
    "moe.down": (-2,),  # [X, F, E]
}


def contracted(name: str) -> tuple[int, ...] | None:
    """The dimensions that a parameter contracts; None if it isn't quantised.

    Args:
        name: its path joined by dots, as layers.0.mlp.down.
    """
    return _CONTRACTED.get(".".join(name.split(".")[-2:]))


def quantize(values: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """int8 values in [-127, 127] and float32 scales, with 1 in the contracted dimensions.

    values * scales is within half a scale of what was given.
    """
    wide = values.astype(np.float32)
    scales = np.abs(wide).max(axis=axes, keepdims=True) / np.float32(127)
    scales[scales == 0] = 1
    return np.rint(wide / scales).astype(np.int8), scales
