"""convert: writes any checkpoint as an Orbax folder that can be served."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax.numpy as jnp

from checkpoints import open_checkpoint
from checkpoints.gguf_config import hf_config
from checkpoints.gguf_header import read_header
from checkpoints.orbax_folder import write
from checkpoints.stored.quantized import QuantizedCheckpoint
from jaxserve.config import Quantization

_WANTED = ("*.json", "*.jinja", "tokenizer.model", "additional_chat_templates")
_WEIGHTS = "*.index.json"
VOCABULARY = "vocabulary.gguf"


def convert(
    path: Path,
    target: Path,
    dtype: str | None,
    quantization: Quantization | None = None,
    progress: bool = False,
) -> None:
    """Writes the checkpoint at path as an Orbax folder at target; after an error there is none.

    Args:
        dtype: of the weights, all as floats; None keeps what is stored, quantised or not.
        quantization: quantise the layers' matrices of a checkpoint of floats; leaves no choice of
            dtype.

    Raises:
        ModelError: the checkpoint can't be read.
        ConfigError: target exists already, or the checkpoint is quantised already.
    """

    def add_files(folder: Path) -> None:
        if path.is_dir():
            _copy_settings(path, folder)
        else:
            header = read_header(path)
            (folder / "config.json").write_text(json.dumps(hf_config(header)))
            _copy_head(path, folder / VOCABULARY, min(t.offset for t in header.tensors.values()))

    checkpoint = open_checkpoint(path)
    if quantization is not None:
        checkpoint = QuantizedCheckpoint(checkpoint, quantization)
    write(checkpoint, target, jnp.dtype(dtype) if dtype else None, add_files, progress)


def _copy_settings(source: Path, folder: Path) -> None:
    """Copies what a Hugging Face folder has besides weights."""
    for pattern in _WANTED:
        for file in source.glob(pattern):
            if file.match(_WEIGHTS):
                continue
            copy = shutil.copytree if file.is_dir() else shutil.copyfile
            copy(file, folder / file.name)


def _copy_head(source: Path, target: Path, size: int) -> None:
    """Copies the metadata of a GGUF file, with vocabulary and chat templates, without tensors."""
    with source.open("rb") as file:
        target.write_bytes(file.read(size))
