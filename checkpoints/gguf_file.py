"""GGUF files of the llama architecture, by memory map, dequantised when read."""

from __future__ import annotations

import math
import re
from pathlib import Path

import gguf
import numpy as np

from checkpoints.base import Checkpoint, Shapes, check_shapes
from checkpoints.gguf_header import GGUFHeader, GGUFTensor, read_header
from jaxserve.config import ModelConfig
from jaxserve.errors import CheckpointError, UnsupportedModelError

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# gguf dequantises 16 rows at a time; rows of this many values make that a cache-sized piece
# (3 times faster than the model's own narrow rows).
_WIDE_ROW = 16_384


class GGUFCheckpoint(Checkpoint):
    """One GGUF file; tensors come out as float32 in Hugging Face's layout."""

    def __init__(self, path: Path) -> None:
        header = read_header(path)
        self.path = path
        self.config = config_from_gguf(header)
        self._tensors = {hf_name(name): tensor for name, tensor in header.tensors.items()}
        check_shapes(path, self.shapes(), self.config)
        self._data = np.memmap(path, dtype=np.uint8, mode="r")
        for name, tensor in self._tensors.items():
            end = tensor.offset + _tensor_nbytes(path, name, tensor)
            if end > self._data.size:
                raise CheckpointError(
                    f"{path}: truncated: the tensor {name} ends at byte {end:,}, "
                    f"the file at {self._data.size:,}"
                )

    def shapes(self) -> Shapes:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def read(self, name: str) -> np.ndarray:
        if name not in self._tensors:
            raise CheckpointError(f"{self.path}: there is no tensor {name}")
        tensor = self._tensors[name]
        nbytes = _tensor_nbytes(self.path, name, tensor)
        raw = self._data[tensor.offset : tensor.offset + nbytes]
        rows, columns = math.prod(tensor.shape[:-1]), tensor.shape[-1]
        fold = 1
        while rows % (2 * fold) == 0 and 2 * fold * columns <= _WIDE_ROW:
            fold *= 2
        kind = gguf.GGMLQuantizationType(tensor.ggml_type)
        try:
            values = gguf.dequantize(raw.reshape(rows // fold, -1), kind)
        except NotImplementedError:
            raise UnsupportedModelError(
                f"{self.path}: the tensor {name} is stored as {kind.name}, "
                "which the gguf package doesn't dequantise"
            ) from None
        values = values.reshape(tensor.shape)
        if name.endswith("q_proj.weight"):
            return _unpermute(values, self.config.num_attention_heads)
        if name.endswith("k_proj.weight"):
            return _unpermute(values, self.config.num_key_value_heads)
        return values

    @property
    def nbytes(self) -> int:
        return sum(_tensor_nbytes(self.path, n, t) for n, t in self._tensors.items())


def hf_name(name: str) -> str:
    """Hugging Face's name of a llama tensor; an unknown name stays as it is."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name):
        layer, part = match.groups()
        return f"model.layers.{layer}.{_LAYER[part]}.weight" if part in _LAYER else name
    stem = name.removesuffix(".weight")
    return f"{_TOP[stem]}.weight" if stem in _TOP else name


def config_from_gguf(header: GGUFHeader) -> ModelConfig:
    """Reads the model's shape from the metadata.

    Raises:
        UnsupportedModelError: not a llama, or one with experts, scaled or partial rope.
        CheckpointError: a key is missing.
    """
    architecture = header.require("general.architecture", str)
    if architecture != "llama":
        raise UnsupportedModelError(
            f"{header.path}: the GGUF architecture {architecture} isn't implemented; "
            "supported: llama"
        )
    heads = header.require("llama.attention.head_count", int)
    hidden = header.require("llama.embedding_length", int)
    head_dim = header.get("llama.attention.key_length", int, hidden // max(heads, 1))
    scaling = header.get("llama.rope.scaling.type", str, "none")
    refused = {
        "experts": header.get("llama.expert_count", int, 0) > 0,
        f"rope scaling ({scaling})": scaling != "none" or "rope_freqs.weight" in header.tensors,
        "partial rope": header.get("llama.rope.dimension_count", int, head_dim) != head_dim,
        "values of another head size than keys": (
            header.get("llama.attention.value_length", int, head_dim) != head_dim
        ),
    }
    for feature, present in refused.items():
        if present:
            raise UnsupportedModelError(f"{header.path}: {feature} isn't implemented for GGUF")
    # llama.cpp ends an output at either.
    ends = (header.token_id("eos"), header.token_id("eot"))
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=header.get("llama.vocab_size", int, None)
        or len(header.require("tokenizer.ggml.tokens", list)),
        hidden_size=hidden,
        intermediate_size=header.require("llama.feed_forward_length", int),
        num_hidden_layers=header.require("llama.block_count", int),
        num_attention_heads=heads,
        num_key_value_heads=header.get("llama.attention.head_count_kv", int, heads),
        head_dim=head_dim,
        max_position_embeddings=header.require("llama.context_length", int),
        rms_norm_eps=header.require("llama.attention.layer_norm_rms_epsilon", float),
        rope_theta=header.get("llama.rope.freq_base", float, 10_000.0),
        tie_word_embeddings="output.weight" not in header.tensors,
        bos_token_id=header.token_id("bos"),
        eos_token_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
    )


def _tensor_nbytes(path: Path, name: str, tensor: GGUFTensor) -> int:
    try:
        block, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.ggml_type)]
    except (ValueError, KeyError):
        raise CheckpointError(
            f"{path}: the tensor {name} has the unknown GGML type {tensor.ggml_type}"
        ) from None
    if tensor.shape[-1] % block:
        raise CheckpointError(f"{path}: the tensor {name} has rows that aren't whole blocks")
    return math.prod(tensor.shape) // block * nbytes


def _unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Undoes llama.cpp's reordering of q and k rows ([out, in]).

    llama.cpp rotates neighbouring pairs, so its converter interleaves the two halves of each
    head; Hugging Face rotates (i, i + D/2), the half-split order.
    """
    out, columns = weight.shape
    pairs = weight.reshape(num_heads, out // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(out, columns)
