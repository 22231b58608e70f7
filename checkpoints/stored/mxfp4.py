"""gpt-oss's experts in MXFP4 (OCP Microscaling Formats 1.0): 4-bit floats, and scales of 32."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np

from checkpoints.stored.assemble import StoredTensor
from checkpoints.stored.raw import RawTensor, RawTensors, Replacement
from jaxserve.errors import CheckpointError
from jaxserve.models.weights import Weight
from jaxserve.models.weights.scaled import Scaled

BLOCKS, SCALES = "_blocks", "_scales"
_SCHEME = Scaled("e2m1", 32)


def replacements(raw: RawTensors) -> Iterator[Replacement]:
    """name_blocks [X, out, B, 16] and name_scales [X, out, B] in place of name [X, 32 B, out].

    Raises:
        CheckpointError: blocks without scales of their shape.
    """
    for name, blocks in raw.items():
        if not (name.endswith(BLOCKS) and blocks.dtype == "U8"):
            continue
        stem = name.removesuffix(BLOCKS)
        scales = raw.get(stem + SCALES)
        if scales is None:
            raise CheckpointError(f"the tensor {stem + SCALES} is missing")
        if len(blocks.shape) != 4 or blocks.shape[3] != 16 or scales.shape != blocks.shape[:3]:
            raise CheckpointError(
                f"the tensors {name} {list(blocks.shape)} and {stem + SCALES} "
                f"{list(scales.shape)} don't fit together"
            )
        experts, outputs, count, _ = blocks.shape
        shape = (experts, 32 * count, outputs)
        stored = _stored(blocks, scales)
        yield Replacement(stem, shape, stored, frozenset({name, stem + SCALES}))


def _stored(blocks: RawTensor, scales: RawTensor) -> StoredTensor:
    rows, count = blocks.shape[0] * blocks.shape[1], blocks.shape[2]

    def read() -> Weight:
        codes = blocks.read().reshape(rows, 16 * count)
        return Weight({"codes": codes, "scales": scales.read().reshape(rows, count)}, _SCHEME)

    shapes = {"codes": (rows, 16 * count), "scales": (rows, count)}
    form = {name: jax.ShapeDtypeStruct(shape, np.uint8) for name, shape in shapes.items()}
    return StoredTensor(Weight(form, _SCHEME), read)
