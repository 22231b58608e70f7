"""config.json's quantization_config: which tensors stand for a weight, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from checkpoints.json_file import read_json
from checkpoints.stored import compressed_tensors, fp8, gptq, mxfp4
from checkpoints.stored.raw import RawTensors, Replacement
from jaxserve.errors import UnsupportedModelError
from jaxserve.models.fields import OBJECT

Reader = Callable[[Mapping[str, Any], RawTensors], Iterator[Replacement]]

_METHODS: Mapping[str, Reader] = {
    "awq": gptq.awq,
    "compressed-tensors": compressed_tensors.replacements,
    "fp8": fp8.replacements,
    "gptq": gptq.gptq,
    "mxfp4": lambda config, raw: mxfp4.replacements(raw),
}


def quantization_config(folder: Path) -> dict[str, Any]:
    """The quantization_config of a folder's config.json; empty where there is none."""
    config = read_json(folder / "config.json", {"compression_config": OBJECT})
    found: dict[str, Any] = config.get("quantization_config") or config.get(
        "compression_config", {}
    )
    return found


def replacements(config: Mapping[str, Any], raw: RawTensors) -> Iterator[Replacement]:
    """What stands for weights among a folder's tensors.

    Raises:
        UnsupportedModelError: a method, or a variant of one, that isn't implemented; names it.
        CheckpointError: tensors that don't fit together.
    """
    method = config.get("quant_method")
    if method is None and not config:
        # gpt-oss's own files; others without a config have floats alone.
        yield from mxfp4.replacements(raw)
        return
    if not isinstance(method, str) or method not in _METHODS:
        raise UnsupportedModelError(
            f"quantization_config has the quant_method {method!r}, which isn't implemented; "
            f"supported: {', '.join(sorted(_METHODS))}"
        )
    yield from _METHODS[method](config, raw)
