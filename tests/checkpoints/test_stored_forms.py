"""Parameters as they are stored against the same parameters as floats."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import gguf
import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints import Checkpoint, open_checkpoint
from checkpoints.weight_map import sources
from jaxserve.models.registry import config_from_hf
from jaxserve.models.weights import Joined, Weight, widened
from tests.checkpoints.conftest import CONFIG
from tests.checkpoints.test_gguf_file import as_gguf, file_name

Tensors = dict[str, np.ndarray]
Write = Callable[..., Path]
F32 = jnp.dtype(jnp.float32)
Q8, Q4, Q5 = (gguf.GGMLQuantizationType[name] for name in ("Q8_0", "Q4_0", "Q5_1"))


def check_all(checkpoint: Checkpoint) -> dict[str, Weight | Joined]:
    """Holds every stored parameter against its floats, and its form against it."""
    found: dict[str, Weight | Joined] = {}
    for path, source in checkpoint.parameters().items():
        form = checkpoint.form(path)
        if form is None:
            continue
        stored, floats = checkpoint.stored_parameter(path), np.asarray(checkpoint.parameter(path))
        if source.experts:  # floats have their inputs first, and then the outputs
            floats = np.moveaxis(floats, 1, -1)
        numbers = np.asarray(widened(stored, F32)).reshape(floats.shape)
        np.testing.assert_array_equal(numbers, floats)
        assert form.shape == stored.shape
        found[".".join(map(str, path))] = stored
    return found


def test_a_gguf_file_of_one_kind_of_block(tensors: Tensors, write_gguf: Write) -> None:
    found = check_all(open_checkpoint(write_gguf(as_gguf(tensors), Q8)))
    assert len(found) == 2 * 4 + 2  # of each layer, the table and the head
    assert all(isinstance(stored, Weight) for stored in found.values())


@pytest.mark.parametrize("value_kind", [Q4, None])
def test_a_gguf_file_of_several_kinds(
    tensors: Tensors, tmp_path: Path, write_gguf: Write, value_kind: gguf.GGMLQuantizationType
) -> None:
    """v and the gate in other blocks than q, k and up, as llama.cpp's mixtures have them; or v in
    none."""
    kinds = {"attn_v": value_kind, "ffn_gate": Q5}

    def kind(name: str) -> gguf.GGMLQuantizationType | None:
        return next((kind for part, kind in kinds.items() if part in name), Q8)

    found = check_all(open_checkpoint(write_gguf(as_gguf(tensors), kind)))
    joined = found["layers.1.attention.qkv"]
    assert isinstance(joined, Joined)
    assert joined.axis == 1
    assert [part.outputs for part in joined.parts] == [(2, 3, 8), (2, 1, 8)]
    gate_up = found["layers.0.mlp.gate_up"]
    assert isinstance(gate_up, Joined)
    assert [part.outputs for part in gate_up.parts] == [(1, 64), (1, 64)]


@pytest.mark.parametrize("same", [True, False])
def test_experts_of_a_gguf_file(write_gguf: Write, same: bool) -> None:
    hf = CONFIG | {
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    }
    rng = np.random.default_rng(0)
    plain: Tensors = {}
    stacks: dict[str, list[np.ndarray]] = {}
    parts = {"gate": "gate_inp", "w1": "gate_exps", "w3": "up_exps", "w2": "down_exps"}
    for source in sources(config_from_hf(hf)).values():
        for name, shape in source.tensors.items():
            value = rng.standard_normal(shape).astype(np.float32)
            if match := re.fullmatch(r"model\.layers\.(\d)\.block.*\.(\w+)\.weight", name):
                stacks.setdefault(f"blk.{match[1]}.ffn_{parts[match[2]]}.weight", []).append(value)
            else:
                plain[file_name(name)] = value
    plain |= {n: v[0] if n.endswith("inp.weight") else np.stack(v) for n, v in stacks.items()}
    metadata = {"llama__expert_count": 4, "llama__expert_used_count": 2}
    path = write_gguf(plain, lambda n: Q8 if same or "up_exps" not in n else Q4, **metadata)
    found = check_all(open_checkpoint(path))
    gate_up = found["layers.0.moe.gate_up"]
    assert gate_up.shape == (4, 2, 64, 32)
    assert isinstance(gate_up, Weight if same else Joined)
    assert isinstance(found["layers.1.moe.down"], Weight)


def test_other_types_of_blocks_are_widened_and_named(
    tensors: Tensors, write_gguf: Write, caplog: pytest.LogCaptureFixture
) -> None:
    other = gguf.GGMLQuantizationType.MXFP4
    path = write_gguf(as_gguf(tensors), lambda n: other if "ffn_down" in n else Q8)
    with caplog.at_level("INFO"):
        found = check_all(open_checkpoint(path))
    assert "tensors stored as MXFP4 are widened to floats" in caplog.text
    assert "layers.0.mlp.down" not in found
    assert "layers.0.mlp.gate_up" in found
