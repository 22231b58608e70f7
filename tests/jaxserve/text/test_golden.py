"""The demo model's tokenizer against transformers' (tests/golden/make_smollm2_tokenizer.py)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from texts import noise, texts

from jaxserve.sampling.params import SamplingParams
from jaxserve.text.detokenizer import Detokenizer
from jaxserve.text.tokenizer import Tokenizer, load_tokenizer

GOLDEN = Path(__file__).parents[2] / "golden" / "smollm2_tokenizer.npz"


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    with np.load(GOLDEN) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def smollm2(demo_model: Path) -> Tokenizer:
    return load_tokenizer(demo_model)


@pytest.fixture(scope="module")
def ids(golden: dict[str, Any]) -> list[list[int]]:
    """Of each text."""
    return [part.tolist() for part in np.split(golden["ids"], golden["ends"][:-1])]


def digest(strings: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(strings).encode()).hexdigest()


def streamed(tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool = True) -> str:
    params = SamplingParams(skip_special_tokens=skip_special_tokens)
    detokenizer = Detokenizer(tokenizer, params)
    deltas = [detokenizer.add([token_id]) for token_id in ids]
    return "".join(d.text for d in [*deltas, detokenizer.add((), "length")])


def test_ids(ids: list[list[int]], smollm2: Tokenizer) -> None:
    assert len(ids) == 2000
    for text, expected in zip(texts(), ids, strict=True):
        assert smollm2.encode(text) == expected, text


def test_text(golden: dict[str, Any], ids: list[list[int]], smollm2: Tokenizer) -> None:
    for text, part in zip(texts(), ids, strict=True):
        assert smollm2.decode(part, skip_special_tokens=False) == text
    decoded = [smollm2.decode(part) for part in ids]
    assert digest(decoded) == str(golden["decoded"])
    assert [streamed(smollm2, part) for part in ids] == decoded


def test_ids_that_make_no_text(golden: dict[str, Any], smollm2: Tokenizer) -> None:
    """Broken UTF-8 and special tokens anywhere, whole and streamed."""
    parts = noise(smollm2.num_ids)
    decoded = [smollm2.decode(part, skip_special_tokens=False) for part in parts]
    assert sum("\ufffd" in text for text in decoded) > 50
    assert digest(decoded) == str(golden["noise"])
    assert [streamed(smollm2, part, skip_special_tokens=False) for part in parts] == decoded


def test_chats(golden: dict[str, Any], smollm2: Tokenizer) -> None:
    chats = json.loads(str(golden["chats"]))
    assert len(chats) == 5
    for case in chats:
        generate = case["add_generation_prompt"]
        text = smollm2.apply_chat_template(case["messages"], add_generation_prompt=generate)
        assert text == case["text"]


def test_ends_of_output(smollm2: Tokenizer) -> None:
    ends = [smollm2.decode([i], skip_special_tokens=False) for i in smollm2.eos_token_ids]
    assert ends == ["<|im_end|>", "<|endoftext|>"]
    assert smollm2.vocab_size == 49_152
