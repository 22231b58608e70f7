"""Checkpoints: found or downloaded by name (`pull`), then opened under one interface."""

from __future__ import annotations

from pathlib import Path

from checkpoints.checkpoint import Checkpoint
from checkpoints.hub import check_name, pull
from jaxserve.config import EngineConfig, Quantization
from jaxserve.errors import ModelNotFoundError

__all__ = [
    "Checkpoint",
    "check_name",
    "open_checkpoint",
    "open_outline",
    "pull",
    "pull_with_tokenizer",
]


def pull_with_tokenizer(config: EngineConfig) -> tuple[Path, Path]:
    """Where the model's files are, and those of the tokenizer, which are usually the same.

    Raises:
        ModelNotFoundError, CheckpointError: as pull().
    """
    path = pull(config.model, config.revision)
    if config.tokenizer is None:
        return path, path
    return path, pull(config.tokenizer, only_tokenizer=True)


def open_outline(path: Path, quantization: Quantization | None = None) -> Checkpoint:
    """As open_checkpoint(), but a Hugging Face folder needs no weights; if it has some, they are
    held against the config.

    Raises:
        JaxserveError: as open_checkpoint().
    """
    if (path / "config.json").exists() and not has_weights(path):
        from checkpoints.config_only import planned

        return planned(path, quantization)
    return open_checkpoint(path, quantization)


def has_weights(path: Path) -> bool:
    """Whether a path is more than a Hugging Face folder's config."""
    weights = (*path.glob("*.safetensors"), *path.glob("jaxserve.json"))
    return not path.is_dir() or bool(weights)


def open_checkpoint(path: Path, quantization: Quantization | None = None) -> Checkpoint:
    """Opens a GGUF file, a Hugging Face folder or an Orbax folder; reads headers only.

    Args:
        quantization: quantise a checkpoint of floats when it is read.

    Raises:
        ModelNotFoundError: nothing is there, or a folder without a model in it.
        UnsupportedModelError: it needs something that isn't implemented.
        CheckpointError: it is damaged or doesn't match its config; names the tensor or file.
        ConfigError: it is quantised already.
    """
    checkpoint = _open(path)
    if quantization is None:
        return checkpoint
    from checkpoints.stored.quantized import QuantizedCheckpoint

    return QuantizedCheckpoint(checkpoint, quantization)


def _open(path: Path) -> Checkpoint:
    # The readers take a third of a second to import, and the tokenizer needs none of them.
    if (path / "jaxserve.json").exists():
        from checkpoints.orbax_folder import OrbaxCheckpoint

        return OrbaxCheckpoint(path)
    if path.is_dir():
        from checkpoints.safetensors_folder import SafetensorsCheckpoint

        return SafetensorsCheckpoint(path)
    if path.is_file():
        from checkpoints.gguf_file import GGUFCheckpoint

        return GGUFCheckpoint(path)
    raise ModelNotFoundError(f"{path}: no such file or folder")
