"""The demo model's tokenizer against transformers' (tests/golden/make_smollm2.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxserve.sampling.params import SamplingParams
from jaxserve.text.detokenizer import Detokenizer
from jaxserve.text.tokenizer import Tokenizer, load_tokenizer

GOLDEN = Path(__file__).parents[2] / "golden" / "smollm2_tokenizer.json"


@pytest.fixture(scope="module")
def golden() -> Any:
    return json.loads(GOLDEN.read_text())


@pytest.fixture(scope="module")
def smollm2(demo_model: Path) -> Tokenizer:
    return load_tokenizer(demo_model)


def test_ids(golden: Any, smollm2: Tokenizer) -> None:
    assert len(golden["strings"]) == 300
    for case in golden["strings"]:
        assert smollm2.encode(case["text"]) == case["ids"], case["text"]


def test_text(golden: Any, smollm2: Tokenizer) -> None:
    for case in golden["strings"]:
        assert smollm2.decode(case["ids"]) == case["decoded"]
        assert smollm2.decode(case["ids"], skip_special_tokens=False) == case["text"]


def test_streamed_text(golden: Any, smollm2: Tokenizer) -> None:
    for case in golden["strings"]:
        detokenizer = Detokenizer(smollm2, SamplingParams())
        deltas = [detokenizer.add([token_id]) for token_id in case["ids"]]
        deltas.append(detokenizer.add((), "length"))
        assert "".join(d.text for d in deltas) == case["decoded"]


def test_chats(golden: Any, smollm2: Tokenizer) -> None:
    assert len(golden["chats"]) == 5
    for case in golden["chats"]:
        generate = case["add_generation_prompt"]
        text = smollm2.apply_chat_template(case["messages"], add_generation_prompt=generate)
        assert text == case["text"]


def test_ends_of_output(smollm2: Tokenizer) -> None:
    (eos,) = smollm2.eos_token_ids
    assert smollm2.decode([eos], skip_special_tokens=False) == "<|im_end|>"
    assert smollm2.vocab_size == 49_152
