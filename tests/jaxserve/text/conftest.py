"""A small byte-level BPE, trained here, as a Hugging Face folder and as a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from jaxserve.text.chat_template import ChatTemplate
from jaxserve.text.huggingface_vocabulary import HuggingFaceVocabulary
from jaxserve.text.tokenizer import Tokenizer, load_tokenizer

CORPUS = [
    "The capital of France is Paris, and the capital of Japan is Tokyo.",
    "def add(a, b):\n    return a + b\n",
    "Größe, naïve café, 東京都, привет мир, 👩‍👩‍👧 🚀🚀",
    "one two three  four   five\n\n\tsix 1234567890",
]
SPECIAL = ["<|end|>", "<|user|>", "<|bot|>", "<s>"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|bot|>' }}{% endif %}"
)


def train() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS * 4, trainer)
    return backend


@pytest.fixture(scope="session")
def backend() -> tokenizers.Tokenizer:
    return train()


@pytest.fixture(scope="session")
def byte_level(backend: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(
        HuggingFaceVocabulary(backend), ChatTemplate({}, {}), bos_token_id=3, eos_token_ids=(0,)
    )


@pytest.fixture(scope="session")
def byte_fallback() -> Tokenizer:
    """As in sentencepiece: a mark for spaces, and bytes for text without a piece."""
    words = ["\u2581", "\u2581the", "\u2581a", "cat", "s", "t", "a", "h", "e", "c"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *words]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(
        HuggingFaceVocabulary(backend), ChatTemplate({}, {}), bos_token_id=1, eos_token_ids=(2,)
    )


@pytest.fixture
def write_folder(tmp_path: Path, backend: tokenizers.Tokenizer) -> Callable[..., Path]:
    def write(add_bos: bool = False, **config: Any) -> Path:
        folder = tmp_path / "folder"
        folder.mkdir()
        own = tokenizers.Tokenizer.from_str(backend.to_str())
        if add_bos:
            own.post_processor = processors.TemplateProcessing(
                single="<s> $A", special_tokens=[("<s>", own.token_to_id("<s>"))]
            )
        own.save(str(folder / "tokenizer.json"))
        settings = {"bos_token": "<s>", "eos_token": {"content": "<|end|>"}} | config
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        return folder

    return write


@pytest.fixture
def write_gguf(tmp_path: Path, backend: tokenizers.Tokenizer) -> Callable[..., Path]:
    def write(pre: str = "gpt-2", model: str = "gpt2", **metadata: Any) -> Path:
        vocab = backend.get_vocab()
        tokens = sorted(vocab, key=lambda token: vocab[token])
        merges = json.loads(backend.to_str())["model"]["merges"]
        path = tmp_path / f"{pre}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tokenizer_model(model)
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
        writer.add_token_merges([" ".join(merge) for merge in merges])
        writer.add_bos_token_id(vocab["<s>"])
        writer.add_eos_token_id(vocab["<|end|>"])
        for key, value in metadata.items():
            writer.add_key_value(f"tokenizer.{key.replace('__', '.')}", value, _kind(value))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return path

    return write


def _kind(value: Any) -> gguf.GGUFValueType:
    kinds = {bool: gguf.GGUFValueType.BOOL, int: gguf.GGUFValueType.UINT32}
    return kinds.get(type(value), gguf.GGUFValueType.STRING)


@pytest.fixture
def tokenizer(write_folder: Callable[..., Path]) -> Tokenizer:
    return load_tokenizer(write_folder(chat_template=TEMPLATE))
