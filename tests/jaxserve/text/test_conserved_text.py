"""Prompt and text together are the text of all ids: of any ids, divided anywhere into prompt and
steps of output, for each kind of vocabulary, with the library's own decoding as the truth."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from texts import texts
from vocabularies import HUGGINGFACE, SENTENCEPIECE, Kind, kind

from jaxserve.sampling.params import SamplingParams
from jaxserve.text.detokenizer import Detokenizer
from jaxserve.text.huggingface_vocabulary import HuggingFaceVocabulary
from jaxserve.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
MANY = st.lists(st.floats(0, 1, exclude_max=True), max_size=24)  # places in the vocabulary
STEPS = st.lists(st.integers(1, 4), max_size=12)


def streamed(
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    output: Sequence[int],
    steps: Sequence[int],
    *,
    skip: bool = False,
    echo: bool = False,
) -> str:
    detokenizer = Detokenizer(
        tokenizer, SamplingParams(skip_special_tokens=skip), prompt, echoes_prompt=echo
    )
    text, at = "", 0
    for step in [*steps, len(output)]:
        if part := output[at : at + step]:
            text += detokenizer.add(part).text
        at += step
    return text + detokenizer.add((), "length").text


def truth(of: Kind, ids: Sequence[int], skip: bool) -> str:
    """The text of ids by the library itself."""
    special = of.tokenizer.special_ids
    if skip:
        return of.decode([i for i in ids if i not in special])
    return of.decode(ids)


def check_conserved(
    of: Kind, ids: Sequence[int], split: int, steps: Sequence[int], skip: bool
) -> None:
    prompt, output = ids[:split], ids[split:]
    tokenizer = of.tokenizer
    # Of a prompt that ends within a character, the libraries disagree about the rest of its bytes.
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    if REPLACEMENT not in before:
        assert before == truth(of, prompt, skip)
    whole = truth(of, ids, skip)
    assert tokenizer.decode(ids, skip_special_tokens=skip) == whole
    text = streamed(tokenizer, prompt, output, steps, skip=skip)
    if whole.startswith(before):
        assert before + text == whole
    else:  # the output completes the prompt's last character, of which up to 3 bytes were there
        ends = [REPLACEMENT * n for n in (1, 2, 3) if before.endswith(REPLACEMENT * n)]
        assert whole in [before.removesuffix(end) + text for end in ends]
    echoed = tokenizer.decode_echo(prompt, skip_special_tokens=skip)
    assert echoed + streamed(tokenizer, prompt, output, steps, skip=skip, echo=True) == whole


@pytest.mark.parametrize("name", SENTENCEPIECE)
@given(MANY, st.integers(0, 24), STEPS)
@example([0.99, 0.99], 1, [])
def test_sentencepiece(name: str, places: list[float], split: int, steps: list[int]) -> None:
    """Without special tokens, which sentencepiece writes otherwise than transformers."""
    of = kind(name)
    usual = [i for i in range(of.tokenizer.num_ids) if i not in of.tokenizer.special_ids]
    ids = [usual[int(place * len(usual))] for place in places]
    check_conserved(of, ids, split, steps, skip=True)


@pytest.mark.parametrize("name", SENTENCEPIECE)
@given(MANY, st.integers(0, 24), STEPS, st.booleans())
def test_sentencepiece_with_special_tokens(
    name: str, places: list[float], split: int, steps: list[int], skip: bool
) -> None:
    """Special tokens are left out, or written as they are; between them, sentencepiece decodes."""
    of = kind(name)
    tokenizer = of.tokenizer
    ids = [int(place * tokenizer.num_ids) for place in places]
    ids[1::3] = [i % 3 for i in ids[1::3]]
    prompt, output = ids[:split], ids[split:]
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    if skip:
        assert whole == truth(of, ids, skip)
    else:
        shown = [tokenizer.vocabulary.piece(i) for i in ids if i in tokenizer.special_ids]
        assert re.findall("<unk>|</?s>", whole) == shown
    echoed = tokenizer.decode_echo(prompt, skip_special_tokens=skip)
    text = streamed(tokenizer, prompt, output, steps, skip=skip, echo=True)
    assert echoed + text == whole


@pytest.mark.parametrize("name", HUGGINGFACE)
@given(MANY, st.integers(0, 24), STEPS, st.booleans())
def test_huggingface(
    name: str, places: list[float], split: int, steps: list[int], skip: bool
) -> None:
    of = kind(name)
    ids = [int(place * of.tokenizer.num_ids) for place in places]
    if name.startswith("byte fallback"):
        # The library writes U+FFFD for valid characters, too, next to invalid bytes.
        assume(REPLACEMENT not in truth(of, ids, skip))
    check_conserved(of, ids, split, steps, skip)


@pytest.mark.parametrize("name", ["byte fallback", "byte fallback without a space"])
@given(st.text("the cats 東🚀é", max_size=12), MANY, st.integers(0, 60), STEPS)
def test_bytes_in_huggingface_vocabularies(
    name: str, text: str, places: list[float], split: int, steps: list[int]
) -> None:
    """Whole characters, which are mostly bytes; and any ids, whose valid characters stay."""
    of = kind(name)
    check_conserved(of, of.encode(text), split, steps, skip=True)
    ids = [int(place * of.tokenizer.num_ids) for place in places]
    prompt, output = ids[:split], ids[split:]
    echoed = of.tokenizer.decode_echo(prompt, skip_special_tokens=False)
    whole = echoed + streamed(of.tokenizer, prompt, output, steps, echo=True)
    assert whole == of.tokenizer.decode(ids, skip_special_tokens=False)
    assert len(whole.encode()) >= len(truth(of, ids, False).replace(REPLACEMENT, ""))


@pytest.mark.parametrize("name", [*SENTENCEPIECE, *HUGGINGFACE])
def test_a_text_in_two_halves(name: str) -> None:
    """Each cut of usual texts, whose ids are by the library."""
    of = kind(name)
    for text in texts()[:40]:
        ids = of.encode(text[:30])
        for split in range(0, len(ids), 7):
            check_conserved(of, ids, split, [1] * 60, skip=True)


class CountingVocabulary(HuggingFaceVocabulary):
    """Records the longest list of ids that it was asked to decode."""

    longest = 0

    def decode(self, ids: Sequence[int]) -> str:
        self.longest = max(self.longest, len(ids))
        return super().decode(ids)


@pytest.mark.parametrize("name", ["word pieces", "words", "suffixes"])
def test_work_for_a_token_does_not_grow(name: str) -> None:
    inner = kind(name).tokenizer.vocabulary
    assert isinstance(inner, HuggingFaceVocabulary)
    vocabulary = CountingVocabulary(inner.backend)
    tokenizer = Tokenizer(vocabulary, kind(name).tokenizer._chat_template, None, ())
    detokenizer = Detokenizer(tokenizer, SamplingParams(), [1, 2] * 500)
    for _ in range(500):
        assert detokenizer.add([1, 2]).text
    assert 0 < vocabulary.longest <= 16
