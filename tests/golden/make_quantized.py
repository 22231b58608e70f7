"""Makes quantized/NAME.npz with compressed-tensors and transformers, one for each scheme:

    python tests/golden/make_quantized.py

needs torch, transformers 5, compressed-tensors, accelerate and safetensors, and none of this
project's code. A random Llama of one layer is compressed by compressed-tensors' own compressors and
read again by transformers, in float32. Arrays: `config` (config.json), `tensors` (JSON of name ->
torch's dtype), each tensor's bytes and shape as `bytes_NAME` and `shape_NAME` (but those that
tiny_weights makes), the floats that compressed-tensors makes of q_proj as `floats_NAME`, `ids` [T],
and `logits` [T, V] of the model that transformers reads from the folder, with inputs rounded where
the scheme says so. What transformers can't read without a GPU gets compressed-tensors' floats.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.entrypoints.convert import AutoAWQConverter
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file
from tiny_weights import make
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
FP8_TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
FP8_STATIC = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
INT8_TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
SCHEMES: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "fp8_channel": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "channel"},
        FP8_TOKEN,
    ),
    "fp8_tensor": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "tensor"},
        FP8_STATIC,
    ),
    "fp8_block": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 32]},
        None,
    ),
    "int8": (
        "int-quantized",
        {"num_bits": 8, "type": "int", "strategy": "channel"},
        INT8_TOKEN,
    ),
    "int4": ("pack-quantized", INT4, None),
    "int4_zeros": ("pack-quantized", INT4 | {"symmetric": False}, None),
    "awq": ("pack-quantized", INT4, None),
}
LARGEST = {"float": 448.0, "int8": 127.0, "int4": 7.0}


def compressed(name: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A weight's tensors, and the floats that they stand for."""
    form, weights, inputs = SCHEMES[name]
    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(
        targets=["Linear"],
        weights=args,
        input_activations=None if inputs is None else QuantizationArgs(**inputs),
    )
    out, columns = weight.shape
    rows, size = {
        "channel": (1, columns),
        "tensor": (out, columns),
        "block": tuple(weights.get("block_structure", (1, 1))),
        "group": (1, weights.get("group_size", 1)),
    }[weights["strategy"]]
    blocks = weight.reshape(out // rows, rows, columns // size, size)
    low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
    state = {"weight": weight}
    if weights.get("symmetric", True):
        kind = "float" if weights["type"] == "float" else f"int{weights['num_bits']}"
        scale = torch.maximum(high, -low) / LARGEST[kind]
        zeros = torch.zeros_like(scale)
    else:
        scale = (high.clamp(min=0) - low.clamp(max=0)) / 15
        zeros = torch.round(-8 - low.clamp(max=0) / scale).clamp(-8, 7)
        state["weight_zero_point"] = zeros.to(torch.int8)
    state["weight_scale"] = scale if weights["strategy"] != "tensor" else scale.reshape(1)
    compressor = BaseCompressor.get_value_from_registry(form)
    state = compressor.compress(state, scheme)
    floats = compressor.decompress(dict(state), scheme)["weight"]
    if inputs is FP8_STATIC:
        state["input_scale"] = torch.tensor([4.0 / 448])
    return {n: t.contiguous() for n, t in state.items()}, floats


def awq(shape: tuple[int, int], seed: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Random words in AutoAWQ's format, and the floats that compressed-tensors' converter finds."""
    out, columns = shape
    random = torch.Generator().manual_seed(seed)

    def words(*size: int) -> torch.Tensor:
        return torch.randint(-(2**31), 2**31, size, generator=random).to(torch.int32)

    state = {
        "qweight": words(columns, out // 8),
        "qzeros": words(columns // 32, out // 8),
        "scales": (torch.rand(columns // 32, out, generator=random) / 32).half(),
    }
    converter = AutoAWQConverter(4, 32, True, "gemm", [], [])
    made = converter.process({f"m.{n}": t for n, t in state.items()})
    args = QuantizationArgs(**INT4 | {"symmetric": False})
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    local = {n.removeprefix("m."): t for n, t in made.items()}
    local["weight_scale"] = local["weight_scale"].float()
    return state, compressor.decompress(local, scheme)["weight"]


def main() -> None:
    target = Path(__file__).parent / "quantized"
    target.mkdir(exist_ok=True)
    for name, (form, weights, inputs) in SCHEMES.items():
        model = LlamaForCausalLM(LlamaConfig(**SIZES)).float()
        floats = {n: torch.from_numpy(make(n, tuple(p.shape))) for n, p in model.named_parameters()}
        tensors, widened = {}, {}
        for key, value in floats.items():
            if key.endswith("proj.weight"):
                stem = key.removesuffix("weight")
                seed = len(widened)
                made, widened[key] = (
                    awq(value.shape, seed) if name == "awq" else compressed(name, value)
                )
                tensors |= {stem + part: tensor for part, tensor in made.items()}
            else:
                tensors[key] = value
        group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
        config = SIZES | {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "float32",
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": form,
                "quantization_status": "compressed",
                "config_groups": {"group_0": group},
                "ignore": ["lm_head"],
            },
        }
        if name == "awq":
            config["quantization_config"] = {
                "quant_method": "awq",
                "bits": 4,
                "group_size": 32,
                "zero_point": True,
                "version": "gemm",
                "modules_to_not_convert": None,
            }
        ids = torch.arange(1, 25) % SIZES["vocab_size"]
        if name in ("int4_zeros", "awq"):  # transformers 5.24 can't read them
            model.load_state_dict(floats | widened)
        else:
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "config.json").write_text(json.dumps(config))
                save_file(tensors, Path(folder) / "model.safetensors", {"format": "pt"})
                model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.no_grad():
            logits = model(ids[None]).logits[0].float().numpy()
        dtypes = {n: str(t.dtype).removeprefix("torch.") for n, t in tensors.items()}
        arrays: dict[str, Any] = {"config": json.dumps(config), "tensors": json.dumps(dtypes)}
        for key, tensor in tensors.items():
            if key in floats and key not in widened:
                continue  # tiny_weights makes it
            arrays["bytes_" + key] = tensor.reshape(-1).view(torch.uint8).numpy()
            arrays["shape_" + key] = np.array(tensor.shape)
        q = "model.layers.0.self_attn.q_proj.weight"
        arrays["floats_" + q] = widened[q].float().numpy()
        np.savez_compressed(target / f"{name}.npz", ids=ids.numpy(), logits=logits, **arrays)
        print(name, (target / f"{name}.npz").stat().st_size, float(np.abs(logits).max()))


if __name__ == "__main__":
    main()
