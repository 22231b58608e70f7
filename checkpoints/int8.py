"""Weights in 8 bits: symmetric, one scale an output channel; for storage, not for arithmetic."""

from __future__ import annotations

import numpy as np

SUFFIX = ".scale"  # of the tensor beside the weight
# The dimensions over which each matrix sums, counted from the last; the others are its output
# channels. Embeddings, heads, routers, norms and biases aren't quantised: they are small, or lose
# too much accuracy.
_CONTRACTED = {
    "attention.qkv": (-1,),  # [K, G+2, D, E]
    "attention.out": (-2, -1),  # [E, H, D]
    "mlp.gate_up": (-1,),  # [2, F, E]
    "mlp.down": (-1,),  # [E, F]
    "moe.gate_up": (-3,),  # [X, E, 2, F]
    "moe.down": (-2,),  # [X, F, E]
}


def contracted(name: str) -> tuple[int, ...] | None:
    """The dimensions over which a parameter sums; None if it isn't quantised.

    Args:
        name: its path joined by dots, such as layers.0.mlp.down.
    """
    return _CONTRACTED.get(".".join(name.split(".")[-2:]))


def quantize(values: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """int8 values in [-127, 127] and float32 scales, with size 1 in these dimensions.

    int8 values * scales differ from `values` by half a scale at most.
    """
    wide = values.astype(np.float32)
    scales = np.abs(wide).max(axis=axes, keepdims=True) / np.float32(127)
    scales[scales == 0] = 1
    return np.rint(wide / scales).astype(np.int8), scales
