"""Sentencepiece's vocabularies, with the library itself and transformers as the truth
(tests/golden/make_*.py)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from texts import noise, texts
from vocabularies import SENTENCEPIECE, bpe, kind, unigram

import checkpoints
from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.text.tokenizer import Tokenizer, load_tokenizer

GOLDEN = Path(__file__).parents[2] / "golden"
Load = Callable[..., Tokenizer]


def parts(ids: np.ndarray, ends: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(ids, ends[:-1])]


def digest(strings: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(strings).encode()).hexdigest()


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a folder with a tokenizer.model and other files, given by name."""

    def load(model: bytes, **files: Any) -> Tokenizer:
        (tmp_path / "tokenizer.model").write_bytes(model)
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return load_tokenizer(tmp_path)

    return load


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Writes a sentencepiece model as llama.cpp's converter does."""

    def write(data: bytes, kind: str, change: Callable[[list[str]], None] | None = None) -> Path:
        model = ModelProto.FromString(data)
        tokens, path = [piece.piece for piece in model.pieces], tmp_path / "model.gguf"
        if change is not None:
            change(tokens)
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tokenizer_model(kind)
        writer.add_token_list(tokens)
        writer.add_token_scores([piece.score for piece in model.pieces])
        writer.add_token_types([piece.type for piece in model.pieces])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(False)
        writer.add_add_space_prefix(model.normalizer_spec.add_dummy_prefix)
        writer.add_remove_extra_whitespaces(model.normalizer_spec.remove_extra_whitespaces)
        if charsmap := model.normalizer_spec.precompiled_charsmap:
            writer.add_precompiled_charsmap(charsmap)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return path

    return write


def usual(texts: Sequence[str]) -> list[str]:
    """Texts without special tokens, which sentencepiece itself takes for plain text."""
    return [text for text in texts if not any(mark in text for mark in ("<s>", "</s>", "<unk>"))]


def check_encoding(tokenizer: Tokenizer, model: bytes, shown: Sequence[str]) -> None:
    """The ids and texts are the library's own."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    for text in shown:
        ids = processor.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text
        assert tokenizer.decode([i for i in ids if i != 0]) == processor.decode(
            [i for i in ids if i != 0]  # the library has a text of its own for unknown characters
        )


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_texts_of_each_model(name: str) -> None:
    of = kind(name)
    for text in usual(texts())[:600]:
        assert of.tokenizer.encode(text, add_special_tokens=False) == of.encode(text), text


def test_a_model_file(load: Load) -> None:
    tokenizer = load(bpe(), tokenizer_config={"bos_token": "<s>", "eos_token": "</s>"})
    golden = np.load(GOLDEN / "tiny_sentencepiece.npz")
    expected = parts(golden["ids"], golden["ends"])
    assert len(expected) == 2000
    for text, ids in zip(texts(), expected, strict=True):
        if text in usual([text]):
            assert tokenizer.encode(text, add_special_tokens=False) == ids, text
            assert tokenizer.encode(text) == [1, *ids]
    assert digest([tokenizer.decode(ids) for ids in expected]) == str(golden["decoded"])


@pytest.mark.parametrize(
    ("model", "kind"),
    [(bpe, "llama"), (lambda: bpe(add_dummy_prefix=False), "llama"), (unigram, "t5")],
)
def test_the_same_model_in_a_gguf_file(
    model: Callable[[], bytes], kind: str, write_gguf: Callable[..., Path]
) -> None:
    tokenizer = load_tokenizer(write_gguf(model(), kind))
    check_encoding(tokenizer, model(), usual(texts())[:300])
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))


def test_added_tokens_as_transformers_has_them(tmp_path: Path) -> None:
    """Special, plain, with spaces taken in and as whole words; old and new models."""
    (tmp_path / "tokenizer.model").write_bytes(bpe())
    sets = json.loads((GOLDEN / "added_tokens.json").read_text(encoding="utf-8"))
    assert [len(one["cases"]) for one in sets] == [259, 202]
    for one in sets:
        for name, content in one["files"].items():
            (tmp_path / name).write_text(json.dumps(content))
        tokenizer = load_tokenizer(tmp_path)
        assert tokenizer.special_ids == {0, 1, 2, 650, 652, 653}
        for case in one["cases"]:
            text, ids = case["text"], case["ids"]
            assert tokenizer.encode(text, add_special_tokens=False) == ids, text
            # Unlike transformers, no second BOS.
            assert tokenizer.encode(text) == case["with_bos"][text.startswith("<s>") :], text
            assert tokenizer.decode(ids) == case["decoded"]
            assert tokenizer.decode(ids, skip_special_tokens=False) == case["whole"]


def test_added_tokens_in_older_files(load: Load) -> None:
    tokenizer = load(
        bpe(),
        added_tokens={"<|user|>": 650, "<tool>": 651},
        special_tokens_map={"additional_special_tokens": ["<|user|>"], "pad_token": "<|no id|>"},
    )
    the = sentencepiece.SentencePieceProcessor(model_proto=bpe()).piece_to_id("the")
    assert tokenizer.encode("<|user|>the<tool>") == [1, 650, the, 651]
    assert tokenizer.num_ids == tokenizer.vocab_size == 652
    assert tokenizer.special_ids == {0, 1, 2, 650}


def test_bos_and_eos_are_added_if_the_files_say_so(load: Load) -> None:
    assert load(bpe()).encode("the") == [1, 292]
    config = {"add_bos_token": False, "add_eos_token": True}
    assert load(bpe(), tokenizer_config=config).encode("the") == [292, 2]


def test_the_names_of_special_tokens_come_from_the_model(load: Load) -> None:
    tokenizer = load(bpe(), tokenizer_config={"chat_template": "{{ bos_token }}{{ eos_token }}"})
    assert tokenizer.apply_chat_template([]) == "<s></s>"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))


@pytest.mark.parametrize("size", [0, 1, 10, 500, 2000])
def test_a_damaged_file_is_an_error(load: Load, size: int) -> None:
    with pytest.raises(CheckpointError, match=r"not a sentencepiece model|damaged vocabulary"):
        load(bpe()[:size])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"added_tokens": {"<x>": "650"}}, "<x> has no id"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": {"content": "a"}}}}, "isn't an id"),
        ({"tokenizer_config": {"added_tokens_decoder": {"650": {}}}}, "has no content"),
        (
            {"tokenizer_config": {"added_tokens_decoder": {"650": {"content": "a", "special": 1}}}},
            "special must be true or false",
        ),
        ({"special_tokens_map": {"additional_special_tokens": "<x>"}}, "must be a list"),
    ],
)
def test_damaged_added_tokens_are_errors(load: Load, files: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(bpe(), **files)


def test_a_model_that_changes_decoded_text_is_refused(load: Load) -> None:
    model = ModelProto.FromString(bpe())
    model.denormalizer_spec.precompiled_charsmap = b"1234"
    with pytest.raises(UnsupportedModelError, match="change decoded text"):
        load(model.SerializeToString())


def test_gguf_vocabularies_that_contradict_themselves(write_gguf: Callable[..., Path]) -> None:
    def twice(tokens: list[str]) -> None:
        tokens[300] = tokens[301]

    with pytest.raises(CheckpointError, match="damaged vocabulary"):
        load_tokenizer(write_gguf(bpe(), "llama", twice))
    with pytest.raises(CheckpointError, match="649 tokens with 650 scores"):
        load_tokenizer(write_gguf(bpe(), "llama", lambda tokens: tokens.pop(3)))


@pytest.mark.slow
def test_gemma3() -> None:
    """All 2,000 texts, as sentencepiece itself encodes them. transformers' merges don't take the
    31 longest runs of spaces as one token each; and transformers, unlike us, puts a second BOS
    before a text that begins with one."""
    tokenizer = load_tokenizer(checkpoints.pull("gemma3-270m"))
    golden = np.load(GOLDEN / "gemma3_tokenizer.npz")
    whole, own = parts(golden["ids"], golden["ends"]), parts(golden["pieces"], golden["piece_ends"])
    everything = texts()
    assert len(everything) == len(whole) == len(own) == 2000
    for text, theirs, pieces in zip(everything, whole, own, strict=True):
        ids = tokenizer.encode(text)
        if "<bos>" in text:
            assert [2, *ids] == theirs
            continue
        assert ids == theirs or " " * 32 in text, text
        # Sentencepiece takes special tokens for plain text.
        if tokenizer.special_ids.isdisjoint(ids[1:]):
            assert ids == [2, *pieces], text
    decoded = [tokenizer.decode(ids) for ids in whole]
    assert digest(decoded) == str(golden["decoded"])
    made = [tokenizer.decode(ids, skip_special_tokens=False) for ids in noise(tokenizer.num_ids)]
    assert digest(made) == str(golden["noise"])
