"""Checkpoints: found or downloaded by name (`pull`), then opened under one interface."""

from __future__ import annotations

from pathlib import Path

from checkpoints.checkpoint import Checkpoint
from checkpoints.hub import check_name, pull
from jaxserve.errors import ModelNotFoundError
from jaxserve.models.config import ModelConfig

__all__ = ["Checkpoint", "check_name", "open_checkpoint", "pull", "read_model_config"]


def read_model_config(path: Path) -> ModelConfig:
    """The config of the model at path; a folder needs no weights for it, but if it has some, they
    are held against the config.

    Raises:
        ModelError: as open_checkpoint().
    """
    if (path / "config.json").exists() and not any(path.glob("*.safetensors")):
        from checkpoints.safetensors_folder import read_config

        return read_config(path)
    return open_checkpoint(path).config


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a GGUF file, a Hugging Face folder or an Orbax folder; reads headers only.

    Raises:
        ModelNotFoundError: nothing is there, or a folder without a model in it.
        UnsupportedModelError: it needs something that isn't implemented.
        CheckpointError: it is damaged or doesn't match its config; names the tensor or file.
    """
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
