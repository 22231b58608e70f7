"""GGUF files, mapped into memory: blocks as they are stored, or dequantised."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import gguf
import jax
import ml_dtypes
import numpy as np

from checkpoints.checkpoint import Checkpoint, Shapes, check_shapes
from checkpoints.gguf_config import MIXTRAL, ROPE_FACTORS, hf_config
from checkpoints.gguf_header import GGUFTensor, read_header
from checkpoints.json_file import naming
from checkpoints.stored.assemble import StoredTensor
from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.models.registry import config_from_hf
from jaxserve.models.weights import Weight
from jaxserve.models.weights.gguf_blocks import LAYOUTS, GGUFBlocks

log = logging.getLogger(__name__)

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
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_LAYER = _LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# With experts: the router, and one tensor for all experts where Hugging Face has one for each ({}).
_QWEN_LAYER = _LAYER | {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
_MIXTRAL_LAYER = _LAYER | {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
_NAMES = {
    "Gemma3ForCausalLM": _GEMMA_LAYER,
    "Qwen3MoeForCausalLM": _QWEN_LAYER,
    MIXTRAL: _MIXTRAL_LAYER,
}
_FLOATS = {"F16": np.float16, "BF16": ml_dtypes.bfloat16}
# gguf dequantises 16 rows at a time. With rows of this many values they just fit into the cache (3
# times faster than with the model's own narrow rows).
_WIDE_ROW = 16_384


class GGUFCheckpoint(Checkpoint):
    """A GGUF file or the parts of one model; tensors are read as float32 in HF's layout."""

    def __init__(self, path: Path) -> None:
        header = read_header(path)
        self.path = path
        hf = hf_config(header)
        with naming(path):
            self.config = config_from_hf(hf)
        names = _NAMES.get(self.config.architecture, _LAYER)
        experts = self.config.moe.num_experts if self.config.moe else 0
        self._tensors: dict[str, GGUFTensor] = {}
        for name, tensor in header.tensors.items():
            if name != ROPE_FACTORS:
                self._tensors |= _one_by_one(path, hf_name(name, names), tensor, experts)
        check_shapes(path, self.shapes(), self.config)
        files = {tensor.path for tensor in self._tensors.values()}
        self._data = {file: np.memmap(file, dtype=np.uint8, mode="r") for file in files}
        for name, tensor in self._tensors.items():
            end = tensor.offset + _tensor_nbytes(path, name, tensor)
            if end > (size := self._data[tensor.path].size):
                raise CheckpointError(
                    f"{tensor.path}: truncated: the tensor {name} ends at byte {end:,}, "
                    f"the file at {size:,}"
                )

        kinds = {gguf.GGMLQuantizationType(t.ggml_type).name for t in self._tensors.values()}
        if other := sorted(kinds - LAYOUTS.keys() - {"F32", *_FLOATS}):
            log.info("%s: tensors stored as %s are widened to floats", path, ", ".join(other))

    def shapes(self) -> Shapes:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def read(self, name: str) -> np.ndarray:
        if name not in self._tensors:
            raise CheckpointError(f"{self.path}: there is no tensor {name}")
        tensor, raw = self._tensors[name], self._raw(name)
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
        return self._in_hf_layout(name, values.reshape(tensor.shape))

    def tensor_type(self, name: str) -> np.dtype:
        kind = gguf.GGMLQuantizationType(self._tensors[name].ggml_type).name
        return np.dtype(_FLOATS.get(kind, np.float32))

    def stored(self, name: str) -> StoredTensor | None:
        tensor = self._tensors[name]
        kind = gguf.GGMLQuantizationType(tensor.ggml_type).name
        if kind not in LAYOUTS:
            return None
        layout, rows = LAYOUTS[kind], math.prod(tensor.shape[:-1])
        shape = (rows, tensor.shape[-1] // layout.values, layout.nbytes)

        def read() -> Weight:
            blocks = self._in_hf_layout(name, self._raw(name).reshape(rows, -1))
            return Weight({"blocks": blocks.reshape(shape)}, GGUFBlocks(kind))

        form = jax.ShapeDtypeStruct(shape, np.uint8)
        return StoredTensor(Weight({"blocks": form}, GGUFBlocks(kind)), read)

    def _raw(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        nbytes = _tensor_nbytes(self.path, name, tensor)
        return self._data[tensor.path][tensor.offset : tensor.offset + nbytes]

    @property
    def _is_gemma(self) -> bool:
        return self.config.architecture == "Gemma3ForCausalLM"

    def _in_hf_layout(self, name: str, values: np.ndarray) -> np.ndarray:
        """Reverses what llama.cpp's converter did to the tensors of a family."""
        if self.config.architecture in ("LlamaForCausalLM", MIXTRAL):
            if name.endswith("q_proj.weight"):
                return _unpermute(values, self.config.num_attention_heads)
            if name.endswith("k_proj.weight"):
                return _unpermute(values, self.config.num_key_value_heads)
        if self._is_gemma and "norm" in name:
            return values - 1  # the file has the factor, Hugging Face the factor minus 1
        return values

    @property
    def nbytes(self) -> int:
        return sum(_tensor_nbytes(self.path, n, t) for n, t in self._tensors.items())


def hf_name(name: str, names: Mapping[str, str] = _LAYER) -> str:
    """Hugging Face's name of a tensor; an unknown name is returned unchanged."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        layer, part, kind = match.groups()
        return f"model.layers.{layer}.{names[part]}.{kind}" if part in names else name
    stem = name.removesuffix(".weight")
    return f"{_TOP[stem]}.weight" if stem in _TOP else name


def _one_by_one(path: Path, name: str, tensor: GGUFTensor, experts: int) -> dict[str, GGUFTensor]:
    """Splits a tensor of all experts [X, ...] into one for each; returns any other unchanged."""
    if "{}" not in name or tensor.shape[0] != experts:
        return {name: tensor}
    nbytes = _tensor_nbytes(path, name, tensor) // experts
    return {
        name.format(i): replace(tensor, shape=tensor.shape[1:], offset=tensor.offset + i * nbytes)
        for i in range(experts)
    }


def _unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Reverses llama.cpp's reordering of the rows of q and k ([out, in]).

    llama.cpp rotates neighbouring pairs, so its converter interleaves the two halves of each
    head; Hugging Face rotates (i, i + D/2), the half-split order.
    """
    out, columns = weight.shape
    pairs = weight.reshape(num_heads, out // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(out, columns)


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
