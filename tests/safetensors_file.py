"""Writes safetensors files with types that the package's NumPy functions don't know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, list[int], bytes]]) -> None:
    """Writes tensors, each its type's name in the format, its shape and its bytes."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        offsets = [offset, offset + len(data)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        offset += len(data)
    encoded = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for _, _, data in tensors.values():
            file.write(data)
