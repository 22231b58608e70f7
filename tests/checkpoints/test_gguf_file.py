from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from checkpoints import open_checkpoint
from checkpoints.gguf_file import hf_name
from checkpoints.weight_map import sources
from jaxserve.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from jaxserve.models.registry import config_from_hf
from jaxserve.models.rope import inverse_frequencies
from tests.checkpoints.conftest import CONFIG

Tensors = dict[str, np.ndarray]
Write = Callable[..., Path]

FILE_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def file_name(name: str) -> str:
    if match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name):
        return f"blk.{match[1]}.{FILE_NAMES[match[2]]}.weight"
    return FILE_NAMES[name]


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k, row by row."""
    size = weight.shape[0] // heads
    rows = []
    for head in range(heads):
        for i in range(size // 2):
            rows += [head * size + i, head * size + i + size // 2]
    return weight[rows]


def as_gguf(tensors: Tensors) -> Tensors:
    heads = {"q_proj": 4, "k_proj": 2}
    out = {}
    for name, value in tensors.items():
        n = next((n for part, n in heads.items() if part in name), None)
        out[file_name(name)] = value if n is None else permute(value, n)
    return out


@pytest.mark.parametrize("quantisation", [None, gguf.GGMLQuantizationType.Q8_0])
@pytest.mark.parametrize("arch", ["llama", "qwen3moe"])
def test_experts_are_read_one_by_one(
    write_gguf: Write, arch: str, quantisation: gguf.GGMLQuantizationType | None
) -> None:
    mixtral = arch == "llama"
    hf = CONFIG | {
        "architectures": ["MixtralForCausalLM" if mixtral else "Qwen3MoeForCausalLM"],
        **dict.fromkeys(("num_local_experts", "num_experts"), 4),
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
    }
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {}
    for source in sources(config_from_hf(hf)).values():
        shapes |= source.tensors
    tensors = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    block = r"(model\.layers\.\d+\.)(?:block_sparse_moe|mlp)\.(?:experts\.(\d+)\.)?(\w+)\.weight"
    parts = {"gate": "gate_inp", "w1": "gate_exps", "w3": "up_exps", "w2": "down_exps"}
    parts |= {f"{x}_proj": f"{x}_exps" for x in ("gate", "up", "down")}
    stacks: dict[str, list[np.ndarray]] = {}
    plain: Tensors = {}
    for name, value in tensors.items():
        if match := re.fullmatch(block, name):
            layer = match[1].split(".")[2]
            stacks.setdefault(f"blk.{layer}.ffn_{parts[match[3]]}.weight", []).append(value)
        elif "q_norm" in name or "k_norm" in name:
            plain[f"blk.{name.split('.')[2]}.attn_{name.split('.')[4]}.weight"] = value
        else:
            heads = 4 if "q_proj" in name else 2 if "k_proj" in name else 0
            plain[file_name(name)] = permute(value, heads) if heads and mixtral else value
    plain |= {n: v[0] if n.endswith("inp.weight") else np.stack(v) for n, v in stacks.items()}
    keys = {"expert_count": 4, "expert_used_count": 2}
    keys |= {} if mixtral else {"expert_feed_forward_length": 64}
    metadata = {f"{arch}__{key}": value for key, value in keys.items()}
    checkpoint = open_checkpoint(write_gguf(plain, quantisation, arch, **metadata))
    moe = checkpoint.config.moe
    assert moe is not None
    assert (moe.num_experts, moe.experts_per_token, moe.intermediate_size) == (4, 2, 64)
    assert moe.renormalize
    assert checkpoint.shapes() == shapes
    for name, value in tensors.items():
        if quantisation is not None and value.ndim > 1:
            value = gguf.dequantize(gguf.quantize(value, quantisation), quantisation)
        np.testing.assert_array_equal(checkpoint.read(name), value, err_msg=name)


def test_names_map_both_ways(tensors: Tensors) -> None:
    for name in tensors:
        assert hf_name(file_name(name)) == name
    assert hf_name("blk.0.attn_surprise.bias") == "blk.0.attn_surprise.bias"


def test_float32_is_read_exactly_and_in_hf_layout(tensors: Tensors, write_gguf: Write) -> None:
    checkpoint = open_checkpoint(write_gguf(as_gguf(tensors)))
    assert checkpoint.shapes() == {name: value.shape for name, value in tensors.items()}
    for name, value in tensors.items():
        np.testing.assert_array_equal(checkpoint.read(name), value)
    assert not checkpoint.config.tie_word_embeddings


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_equals_a_plain_call_of_gguf(
    tensors: Tensors, write_gguf: Write, kind: str
) -> None:
    quantisation = gguf.GGMLQuantizationType[kind]
    checkpoint = open_checkpoint(write_gguf(as_gguf(tensors), quantisation))
    for name, value in tensors.items():
        read = checkpoint.read(name)
        assert read.dtype == np.float32
        if value.ndim == 1:
            np.testing.assert_array_equal(read, value)
        else:
            # Permuting whole rows and quantising within rows commute.
            packed = gguf.quantize(value, quantisation)
            np.testing.assert_array_equal(read, gguf.dequantize(packed, quantisation))


def test_without_output_weight_the_head_is_tied(tensors: Tensors, write_gguf: Write) -> None:
    del tensors["lm_head.weight"]
    checkpoint = open_checkpoint(write_gguf(as_gguf(tensors)))
    assert checkpoint.config.tie_word_embeddings
    assert "lm_head.weight" not in checkpoint.shapes()


def test_eos_ids_include_end_of_turn(tensors: Tensors, write_gguf: Write) -> None:
    path = write_gguf(as_gguf(tensors), tokenizer__ggml__eot_token_id=9)
    assert open_checkpoint(path).config.eos_token_ids == (2, 9)


def test_metadata_with_an_impossible_value_is_named(tensors: Tensors, write_gguf: Write) -> None:
    whole = as_gguf(tensors)
    with pytest.raises(CheckpointError, match=r"eot_token_id is 40, past the vocabulary's end"):
        open_checkpoint(write_gguf(whole, tokenizer__ggml__eot_token_id=40))
    with pytest.raises(CheckpointError, match=r"llama\.rope\.freq_base isn't float"):
        open_checkpoint(write_gguf(whole, llama__rope__freq_base="x"))


def test_damage_names_the_tensor(tensors: Tensors, write_gguf: Write) -> None:
    whole = as_gguf(tensors)
    q = "blk.1.attn_q.weight"
    hf = "model.layers.1.self_attn.q_proj.weight"
    with pytest.raises(CheckpointError, match=f"{hf} is missing"):
        open_checkpoint(write_gguf({n: v for n, v in whole.items() if n != q}))
    with pytest.raises(CheckpointError, match=f"{hf} has shape"):
        open_checkpoint(write_gguf(whole | {q: whole[q][:16]}))
    with pytest.raises(CheckpointError, match=r"self_attn\.q_proj\.bias is not part of"):
        open_checkpoint(write_gguf(whole | {"blk.0.attn_q.bias": np.ones(32, np.float32)}))


def test_truncated_data_names_a_tensor(tensors: Tensors, write_gguf: Write) -> None:
    path = write_gguf(as_gguf(tensors))
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(CheckpointError, match=r"truncated: the tensor \S+\.weight ends"):
        open_checkpoint(path)


@pytest.mark.parametrize("size", [0, 3, 10, 20, 100, 400, 900])
def test_a_header_cut_anywhere_is_an_error(tensors: Tensors, write_gguf: Write, size: int) -> None:
    path = write_gguf(as_gguf(tensors))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=str(path)):
        open_checkpoint(path)


def test_a_header_with_absurd_counts_is_an_error(tensors: Tensors, write_gguf: Write) -> None:
    path = write_gguf(as_gguf(tensors))
    damaged = bytearray(path.read_bytes())
    damaged[32:40] = b"\xff" * 8  # inside the first key
    path.write_bytes(bytes(damaged))
    with pytest.raises(CheckpointError, match="damaged or truncated GGUF header"):
        open_checkpoint(path)


def test_what_is_not_implemented_is_refused(tensors: Tensors, write_gguf: Write) -> None:
    whole = as_gguf(tensors)
    with pytest.raises(UnsupportedModelError, match="experts"):
        open_checkpoint(write_gguf(whole, arch="qwen2", qwen2__expert_count=8))
    with pytest.raises(UnsupportedModelError, match=r"rope scaling \(magic\)"):
        open_checkpoint(write_gguf(whole, llama__rope__scaling__type="magic"))
    with pytest.raises(UnsupportedModelError, match=r"architecture mamba.*supported: llama"):
        open_checkpoint(write_gguf(whole, general__architecture="mamba"))


def test_rope_factors_of_llama3_divide_the_frequencies(tensors: Tensors, write_gguf: Write) -> None:
    factors = np.array([1, 2, 4, 8], np.float32)
    checkpoint = open_checkpoint(write_gguf(as_gguf(tensors) | {"rope_freqs.weight": factors}))
    turn = checkpoint.config.layers[0].rope
    assert turn is not None
    got, factor = inverse_frequencies(turn, 8, 64)
    np.testing.assert_allclose(got, 10_000.0 ** (-np.arange(0, 8, 2) / 8) / factors)
    assert factor == 1.0


def test_a_model_in_parts_is_read_from_all_of_them(tensors: Tensors, write_gguf: Write) -> None:
    first = write_gguf(as_gguf(tensors), parts=3)
    assert len(list(first.parent.glob("*.gguf"))) == 3
    checkpoint = open_checkpoint(first)
    assert checkpoint.shapes() == {name: value.shape for name, value in tensors.items()}
    for name, value in tensors.items():
        np.testing.assert_array_equal(checkpoint.read(name), value)


def test_parts_that_are_missing_or_given_wrongly_are_named(
    tensors: Tensors, write_gguf: Write
) -> None:
    first = write_gguf(as_gguf(tensors), parts=3)
    second = first.with_name("model-00002-of-00003.gguf")
    with pytest.raises(CheckpointError, match="part 2 of 3; give the first part"):
        open_checkpoint(second)
    first.rename(renamed := first.with_name("renamed.gguf"))
    with pytest.raises(CheckpointError, match=r"the name that ends in -00001-of-00003\.gguf"):
        open_checkpoint(renamed)
    renamed.rename(first)
    second.unlink()
    with pytest.raises(ModelNotFoundError, match=r"model-00002-of-00003\.gguf: no such file"):
        open_checkpoint(first)


def test_arrays_of_equal_values_count_as_one(tensors: Tensors, write_gguf: Write) -> None:
    whole = as_gguf(tensors)
    equal = {"llama__feed_forward_length": [64, 64], "llama__attention__head_count_kv": [2, 2]}
    assert open_checkpoint(write_gguf(whole, **equal)).config.num_key_value_heads == 2
    with pytest.raises(UnsupportedModelError, match=r"head_count_kv differs from layer to layer"):
        open_checkpoint(write_gguf(whole, llama__attention__head_count_kv=[2, 4]))
