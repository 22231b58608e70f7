"""Sentencepiece vocabularies against sentencepiece and transformers (tests/golden/make_*.py)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from texts import noise, texts

import checkpoints
from jaxserve.errors import CheckpointError
from jaxserve.sampling.params import SamplingParams
from jaxserve.text.detokenizer import Detokenizer
from jaxserve.text.sentencepiece import Vocabulary, build
from jaxserve.text.sentencepiece_file import read_vocabulary
from jaxserve.text.tokenizer import Tokenizer, load_tokenizer

GOLDEN = Path(__file__).parents[2] / "golden"
MODEL = GOLDEN / "tiny_sentencepiece.model"


def parts(ids: np.ndarray, ends: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(ids, ends[:-1])]


def digest(strings: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(strings).encode()).hexdigest()


def streamed(tokenizer: Tokenizer, ids: list[int]) -> str:
    detokenizer = Detokenizer(tokenizer, SamplingParams())
    deltas = [detokenizer.add([i]) for i in ids]
    return "".join(d.text for d in [*deltas, detokenizer.add((), "length")])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("spm")
    (folder / "tokenizer.model").write_bytes(MODEL.read_bytes())
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    return load_tokenizer(folder)


def test_a_model_file(tiny: Tokenizer) -> None:
    golden = np.load(GOLDEN / "tiny_sentencepiece.npz")
    expected = parts(golden["ids"], golden["ends"])
    assert len(expected) == 2000
    for text, ids in zip(texts(), expected, strict=True):
        if "<s>" in text or "<unk>" in text:  # sentencepiece takes special tokens for plain text
            continue
        assert tiny.encode(text, add_special_tokens=False) == ids, text
        assert tiny.encode(text) == [1, *ids]
    assert digest([tiny.decode(ids) for ids in expected]) == str(golden["decoded"])


def test_streamed_text_is_the_whole_text(tiny: Tokenizer) -> None:
    for text in texts()[:100]:
        ids = tiny.encode(text)
        assert streamed(tiny, ids) == tiny.decode(ids)


@pytest.mark.parametrize("size", [0, 1, 10, 500, 2000])
def test_a_damaged_file_is_an_error(tmp_path: Path, size: int) -> None:
    (tmp_path / "tokenizer.model").write_bytes(MODEL.read_bytes()[:size])
    with pytest.raises(CheckpointError, match="not a sentencepiece model"):
        read_vocabulary(tmp_path / "tokenizer.model")


def test_vocabularies_that_contradict_themselves_are_errors() -> None:
    with pytest.raises(CheckpointError, match="2 pieces with 1 scores"):
        build(Vocabulary(["a", "b"], [0.0], [1, 1], True, "file"))
    with pytest.raises(CheckpointError, match="a piece appears twice"):
        build(Vocabulary(["a", "a"], [0.0, 1.0], [1, 1], True, "file"))


@pytest.mark.slow
def test_gemma3() -> None:
    """All 2,000 texts. Sentencepiece, which the model was trained with, takes the 31 longest
    runs of spaces first where transformers' merges halve them; and transformers, unlike us, puts a
    second BOS before a text that begins with one."""
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
    for text in everything[:200]:
        ids = tokenizer.encode(text)
        assert streamed(tokenizer, ids) == tokenizer.decode(ids)
