"""Grammars over each kind of vocabulary: whatever tokens are drawn, the text is the grammar's."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from vocabularies import HUGGINGFACE, SENTENCEPIECE, Kind, kind

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.grammar import GrammarCompiler, StepBudget
from jaxserve.sampling.grammar_vocabulary import GrammarEncoder, GrammarVocabulary
from jaxserve.sampling.params import StructuredOutputsParams
from jaxserve.text.huggingface_vocabulary import HuggingFaceVocabulary

# Of vocabularies that can write any text.
NAMES = [
    *("bpe", "bpe without a space", "bpe without extra spaces", "unigram"),
    *("unigram that keeps text", "byte-level", "byte fallback", "byte fallback without a space"),
]
TEXTS = ["a the the", " the  the", "the 東京🚀", "e\u0301 \uff41 \u2581", "<s>the</s>"]


def compiler(of: Kind, eos: int) -> GrammarCompiler:
    tokenizer = of.tokenizer
    known = tokenizer.grammar_vocabulary(tokenizer.num_ids)
    return GrammarCompiler(
        GrammarVocabulary(known.tokens, known.special_ids, [eos], known.encoder, len(known.tokens))
    )


def drawn(
    compiler: GrammarCompiler, params: StructuredOutputsParams, eos: int, seed: int
) -> Iterator[int]:
    """Tokens drawn from the masks until the end."""
    draw, ids = random.Random(seed), list[int]()
    state = compiler.compile(params).start()
    while True:
        bits = np.unpackbits(state.mask(ids, StepBudget(1)).view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits).tolist()
        assert allowed
        ids.append(draw.choice(allowed))
        if ids[-1] == eos:
            return
        yield ids[-1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_written_as_it_is(name: str, text: str) -> None:
    """After a prompt that ends in a letter: no space is added, and no character is changed."""
    of = kind(name)
    eos = max(of.tokenizer.special_ids)
    grammars = compiler(of, eos)
    letter = of.encode("a")
    before = of.decode(letter)
    for seed, params in enumerate(
        (
            StructuredOutputsParams(choice=(text,)),
            StructuredOutputsParams(choice=(text, f"{text}x", f" {text}")),
            StructuredOutputsParams(regex="(the|a| |\\n){0,6}"),
        )
    ):
        ids = list(drawn(grammars, params, eos, seed))
        assert of.tokenizer.special_ids.isdisjoint(ids)
        written = of.decode([*letter, *ids]).removeprefix(before)
        if params.choice is not None:
            assert written in params.choice
        else:
            assert set(written) <= set("the a\n")


@pytest.mark.parametrize("name", ["word pieces", "words", "metaspace"])
def test_vocabularies_of_words_write_what_they_can(name: str) -> None:
    of = kind(name)
    eos = max(of.tokenizer.special_ids)
    params = StructuredOutputsParams(choice=(" the",))
    ids = list(drawn(compiler(of, eos), params, eos, 0))
    start = of.encode("cat")
    assert start
    assert of.decode([*start, *ids]) == of.decode(start) + " the"


@pytest.mark.parametrize("name", ["unigram without bytes", "words"])
def test_a_text_that_no_token_writes_is_refused(name: str) -> None:
    of = kind(name)
    eos = max(of.tokenizer.special_ids)
    grammars = compiler(of, eos)
    with pytest.raises(InvalidRequestError):
        list(drawn(grammars, StructuredOutputsParams(choice=("\U00010348",)), eos, 0))


def test_an_encoder_changes_no_character() -> None:
    """The vocabulary's own encoder adds a space, composes characters and writes BOS."""
    letters = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(letters, []))
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    backend.enable_truncation(4)
    encode = HuggingFaceVocabulary(backend).grammar_encoder().build()
    assert backend.decode(encode("E\u0301 Hi there")) == "E\u0301 Hi there"


@pytest.mark.parametrize("name", [*SENTENCEPIECE, *HUGGINGFACE])
def test_vocabularies_can_be_sent_to_another_process(name: str) -> None:
    vocabulary = kind(name).tokenizer.grammar_vocabulary(1000)
    assert len(vocabulary.tokens) == kind(name).tokenizer.num_ids
    assert isinstance(vocabulary.encoder, GrammarEncoder)
    assert vocabulary.encoder.build()("the the")


def test_a_vocabulary_without_an_end_has_no_grammars() -> None:
    with pytest.raises(InvalidRequestError, match="no token that ends an output"):
        GrammarCompiler(GrammarVocabulary([b"a"], [], [], GrammarEncoder(), 1))
