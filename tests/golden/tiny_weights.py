"""Weights made from their names, so that goldens needn't hold them: the scripts here give them to
transformers, the tests to us. NumPy alone; RandomState's streams never change."""

from __future__ import annotations

import zlib

import numpy as np


def make(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """One tensor of a random model, float32; uint8 for MXFP4 blocks and scales."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    if name.endswith("_blocks"):
        return random.randint(0, 256, shape).astype(np.uint8)
    if name.endswith("_scales"):
        return random.randint(121, 124, shape).astype(np.uint8)
    if "norm" in name:  # apart from 1, and from 0 where 1 is added
        return random.uniform(0.4, 1.4, shape).astype(np.float32)
    if name.endswith("sinks"):
        return random.uniform(-1, 3, shape).astype(np.float32)
    return (random.standard_normal(shape) * 0.2).astype(np.float32)
