"""`jaxserve plan`: the limits that the engine would choose, computed from a config."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from jaxserve.cli.main import main
from jaxserve.config import MIB, EngineConfig
from jaxserve.engine.frontend.llm import LLM
from jaxserve.engine.startup.capacity import plan
from jaxserve.engine.startup.device_info import GPUS
from jaxserve.errors import ConfigError

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}


@pytest.fixture
def llama_8b(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    return tmp_path


def test_llama_8b_on_an_h100(llama_8b: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(llama_8b), "--gpu", "H100-80GB"]) == 0
    shown = capsys.readouterr().out
    # 8,030,261,248 parameters of two bytes (the model card); 2 x 32 x 8 x 128 x 2 bytes a token.
    assert "14.96 GiB" in shown
    assert "131072 bytes a token" in shown
    # A step of 8,192 tokens holds x twice, normed x, gate, up and their product, bf16; 257 slots
    # have a count (4 bytes) and a bit for each of 128,256 tokens, and 300 biases of 8 bytes.
    step = 8192 * (3 * 4096 + 3 * 14336) * 2
    tables = 257 * (128256 * 4 + 128256 // 8 + 300 * 8)
    pool = int(GPUS["H100-80GB"] * 0.9) - 2 * 8_030_261_248 - step - tables - 256 * MIB
    blocks = pool // (16 * 131072)
    assert 2**14 <= blocks < 2**15
    blocks -= blocks % 2**8  # seven binary digits are kept
    assert f"{blocks} blocks of 16 tokens" in shown
    # 8,192 tokens are 512 blocks, 1,000 are 63.
    assert f"{(blocks - 1) // 512} requests of 8192 tokens, {(blocks - 1) // 63} of 1000" in shown
    decodes = re.search(r"decode +([\d, ]+) rows", shown)
    assert decodes is not None
    assert decodes[1].split(", ")[-1] == "256"


@pytest.mark.parametrize(("length", "shown"), [(512, False), (1000, False), (1001, True)])
def test_requests_longer_than_the_context_are_not_counted(
    llama_8b: Path, capsys: pytest.CaptureFixture[str], length: int, shown: bool
) -> None:
    command = ["plan", str(llama_8b), "--gpu", "H100-80GB", "--max-model-len", str(length)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert re.search(rf"holds \d+ requests of {length} tokens(, \d+ of 1000)?\n", text)
    assert (" of 1000\n" in text) == shown


def test_a_model_that_leaves_no_room(llama_8b: Path) -> None:
    config = EngineConfig(model=str(llama_8b), gpu_memory_utilization=0.2)
    with pytest.raises(ConfigError, match="none for the KV cache"):
        list(plan(config, llama_8b, "A100-80GB"))
    with pytest.raises(ConfigError, match="H100-80GB"):
        list(plan(config, llama_8b, "H1000"))


@pytest.mark.parametrize("damage", ["none", "cut"])
def test_what_a_server_would_refuse_of_a_tokenizer(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "copy"))
    assert main(["plan", str(folder), "--kv-cache-memory", "1MiB"]) == 0
    file = folder / "tokenizer.json"
    if damage == "none":
        file.unlink()
    else:
        file.write_text(file.read_text()[:1000])
    assert main(["plan", str(folder), "--kv-cache-memory", "1MiB"]) == 1
    assert "tokenizer" in capsys.readouterr().err


def test_several_steps_a_dispatch_are_a_program_more_for_each_decode(llama_8b: Path) -> None:
    config = EngineConfig(str(llama_8b), max_num_seqs=32, decode_steps=8)
    shown = "\n".join(plan(config, llama_8b, "H100-80GB"))
    assert "1, 16, 32 rows" in shown
    assert "8 steps in one dispatch: 3 programs more" in shown


def test_the_plan_is_what_the_engine_does(tiny_llama: Path, llm: LLM) -> None:
    shown = "\n".join(plan(llm.config, tiny_llama, None))
    assert llm.core.ready.cache in shown
    assert f"step shapes  {len(llm.core._runner._steps)}" in shown


def weights_line(text: str) -> float:
    (line,) = (line for line in text.splitlines() if line.startswith("weights"))
    return float(line.split()[1])


def test_plans_know_the_bytes_of_quantised_weights(
    llama_8b: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By arithmetic: 6.979 billion numbers in the layers' matrices, 1.051 billion in others."""
    layers, others = 6_979_321_856, 1_050_939_392
    for kind, layer_bytes in {"fp8": 1, "int8": 1, "int4": 0.5 + 3 / 128}.items():
        assert main(["plan", str(llama_8b), "--gpu", "H100-80GB", "--quantization", kind]) == 0
        wanted = (layers * layer_bytes + 2 * others) / 2**30
        assert weights_line(capsys.readouterr().out) == pytest.approx(wanted, rel=2e-3)


def test_a_config_without_weights_says_how_they_would_be_stored(
    llama_8b: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((llama_8b / "config.json").read_text())
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    (llama_8b / "config.json").write_text(json.dumps(config | {"quantization_config": awq}))
    assert main(["plan", str(llama_8b), "--gpu", "H100-80GB"]) == 0
    assert weights_line(capsys.readouterr().out) == pytest.approx(5.36, abs=0.02)


def test_suggestions(llama_8b: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(llama_8b), "--suggest", "--gpu", "A100-40GB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["A100-40GB", kind] for kind in ("bfloat16", "fp8", "int8", "int4")
    ]
    tokens = [int(line.split("KV cache of ")[1].split()[0]) for line in lines]
    assert tokens == sorted(tokens)
    assert tokens[0] < tokens[-1]
