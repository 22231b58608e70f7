"""Checkpoint: a model's config and tensors under Hugging Face's names, whatever the file format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxserve.config import ModelConfig
from jaxserve.errors import CheckpointError, UnsupportedModelError

ARCHITECTURES = ("LlamaForCausalLM",)

Shapes = dict[str, tuple[int, ...]]


class Checkpoint(ABC):
    """An opened checkpoint. Opening reads headers only and checks every name and shape."""

    path: Path
    config: ModelConfig

    @abstractmethod
    def shapes(self) -> Shapes:
        """Shapes by Hugging Face name; a linear weight is [out, in]."""

    @abstractmethod
    def read(self, name: str) -> np.ndarray:
        """One tensor in its shape, read from disk now. It may be a read-only view of the file.

        GGUF gives float32; safetensors give what is stored: float32, float16 or bfloat16
        (ml_dtypes').

        Raises:
            CheckpointError: the checkpoint has no tensor of that name.
        """

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Size of the tensors on disk, in bytes."""


def expected_shapes(config: ModelConfig) -> Shapes:
    """What a Llama of this config consists of.

    Raises:
        UnsupportedModelError: the architecture isn't one of ARCHITECTURES.
    """
    if config.architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"the architecture {config.architecture} isn't implemented; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    hidden, ffn = config.hidden_size, config.intermediate_size
    q = config.num_attention_heads * config.head_dim
    kv = config.num_key_value_heads * config.head_dim
    layer = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (ffn, hidden),
        "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
    }
    shapes: Shapes = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    for i in range(config.num_hidden_layers):
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def check_shapes(path: Path, found: Mapping[str, tuple[int, ...]], config: ModelConfig) -> None:
    """Holds a checkpoint's tensors against its config.

    Raises:
        CheckpointError: names the first tensor that is missing, extra or of another shape.
    """
    expected = expected_shapes(config)
    for name, shape in expected.items():
        if name not in found:
            raise CheckpointError(f"{path}: the tensor {name} is missing")
        if found[name] != shape:
            raise CheckpointError(
                f"{path}: the tensor {name} has shape {list(found[name])}; "
                f"its config asks for {list(shape)}"
            )
    for name in found:
        if name not in expected:
            raise CheckpointError(
                f"{path}: the tensor {name} has no place in {config.architecture}"
            )
