"""Scales of an FP8 KV cache, as compressed-tensors stores them beside a layer's projections."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from checkpoints.stored.raw import RawTensor

KV_SCALES = ("self_attn.k_scale", "self_attn.v_scale")


def one_a_head(scale: RawTensor, kv_heads: int) -> RawTensor:
    """A scale of all heads, or one a head in any shape, as [K]."""
    if math.prod(scale.shape) not in (1, kv_heads):
        return scale  # the check of shapes names it
    return RawTensor((kv_heads,), scale.dtype, partial(_read, scale, kv_heads))


def _read(scale: RawTensor, kv_heads: int) -> np.ndarray:
    return np.broadcast_to(scale.read().reshape(-1), (kv_heads,))
