"""JSON files and metadata with impossible values: an error names the file and the field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import open_checkpoint
from checkpoints.generation_config import read_sampling_defaults
from jaxserve.errors import CheckpointError, ModelError
from jaxserve.models.registry import config_from_hf
from jaxserve.text.tokenizer import load_tokenizer
from tests.checkpoints.test_gguf_file import as_gguf

Tensors = dict[str, np.ndarray]
Write = Callable[..., Path]
FAMILIES = sorted((Path(__file__).parents[1] / "golden" / "families").glob("*.npz"))
WRONG: tuple[Any, ...] = ("x", -1, 0, 1, 2**31, 1e300, float("nan"), True, [], ["x"], {}, {"x": 1})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", "32"),
        ("num_hidden_layers", 2**31),
        ("num_attention_heads", 0),
        ("num_attention_heads", 3),
        ("num_key_value_heads", -2),
        ("head_dim", 7),
        ("vocab_size", 40.5),
        ("rms_norm_eps", "small"),
        ("rope_theta", -1.0),
        ("rope_scaling", "yarn"),
        ("rope_scaling", {"type": "linear", "factor": "two"}),
        ("rope_scaling", {"type": "linear"}),
        ("eos_token_id", ["</s>"]),
        ("architectures", "LlamaForCausalLM"),
        ("tie_word_embeddings", "yes"),
    ],
)
def test_config_json(tensors: Tensors, write_folder: Write, field: str, value: Any) -> None:
    folder = write_folder(tensors, **{field: value})
    named = next(iter(value.keys() - {"type"}), "factor") if isinstance(value, dict) else field
    with pytest.raises(ModelError, match=re.escape(f"{folder}/config.json: ") + f".*{named}"):
        open_checkpoint(folder)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda path: path.stem)
def test_any_field_of_a_config_may_be_damaged(family: Path) -> None:
    """No value of a field raises anything but ModelError, or takes long."""
    config = json.loads(str(np.load(family)["config"]))
    places = [(config, name) for name in config]
    places += [
        (value, name) for value in config.values() if isinstance(value, dict) for name in value
    ]
    refused = 0
    for holder, name in places:
        kept = holder.pop(name)
        for value in (None, *WRONG):
            holder[name] = value
            try:
                config_from_hf(config)
            except ModelError:
                refused += 1
        holder[name] = kept
    config_from_hf(config)
    assert refused > len(places)


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("generation_config.json", {"eos_token_id": "</s>"}, "eos_token_id"),
        ("generation_config.json", {"temperature": "hot"}, "temperature"),
        ("generation_config.json", {"top_p": 1.5}, "top_p"),
        ("generation_config.json", {"top_k": -1}, "top_k"),
        ("generation_config.json", [], "not a JSON object"),
        ("tokenizer_config.json", {"bos_token": 1}, "bos_token"),
        ("tokenizer_config.json", {"chat_template": [{"name": "default"}]}, "chat_template"),
        ("tokenizer_config.json", {"chat_template": 7}, "chat_template"),
        ("tokenizer_config.json", "text", "not a JSON object"),
    ],
)
def test_files_beside_it(
    tiny_llama: Path, tmp_path: Path, file: str, content: Any, named: str
) -> None:
    for source in tiny_llama.iterdir():
        (tmp_path / source.name).symlink_to(source)
    (tmp_path / file).unlink(missing_ok=True)
    (tmp_path / file).write_text(json.dumps(content))
    sampling = named in ("temperature", "top_p", "top_k")
    with pytest.raises(CheckpointError, match=re.escape(f"{tmp_path / file}: {named}")):
        read_sampling_defaults(tmp_path) if sampling else load_tokenizer(tmp_path)


@pytest.mark.parametrize("value", [None, 3, "../elsewhere.safetensors", ["a"]])
def test_the_index_of_shards(tensors: Tensors, write_folder: Write, value: Any) -> None:
    folder = write_folder(tensors, shards=2)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    name = next(iter(content["weight_map"]))
    content["weight_map"][name] = value
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=re.escape(f"{index}: weight_map") + f".*{name}"):
        open_checkpoint(folder)
    index.write_text(json.dumps({"weight_map": value}))
    with pytest.raises(CheckpointError, match=re.escape(f"{index}: ") + ".*weight_map"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("llama.block_count", 2**31, r"llama\.block_count is 2147483648"),
        ("llama.attention.head_count", 0, "num_attention_heads"),
        ("llama.attention.head_count_kv", 3, "num_key_value_heads"),
        ("llama.context_length", 0, "max_position_embeddings"),
    ],
)
def test_gguf_metadata(
    tensors: Tensors, write_gguf: Write, key: str, value: int, named: str
) -> None:
    path = write_gguf(as_gguf(tensors), **{key.replace(".", "__"): value})
    with pytest.raises(CheckpointError, match=re.escape(f"{path}: ") + f".*{named}"):
        open_checkpoint(path)
