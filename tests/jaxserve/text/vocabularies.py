"""Vocabularies of each kind, made here, with the library's own decoding as the truth."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import sentencepiece
import tokenizers
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from texts import PROSE
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from jaxserve.text.chat_template import ChatTemplate
from jaxserve.text.huggingface_vocabulary import HuggingFaceVocabulary
from jaxserve.text.tokenizer import Tokenizer, load_tokenizer
from jaxserve.text.vocabulary import Vocabulary

GOLDEN = Path(__file__).parents[2] / "golden"
SPACE = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = [SPACE, f"{SPACE}the", f"{SPACE}a", SPACE * 3, "cat", "s", "t", "a", "h", "e", "c", "東"]


@dataclass(frozen=True)
class Kind:
    """One vocabulary.

    Args:
        decode: the text of ids by the library itself.
        encode: the ids of a text by the library itself, without BOS.
    """

    tokenizer: Tokenizer
    decode: Callable[[Sequence[int]], str]
    encode: Callable[[str], list[int]]


def _wrapped(vocabulary: Vocabulary) -> Tokenizer:
    return Tokenizer(vocabulary, ChatTemplate({}, {}), None, ())


def _huggingface(backend: tokenizers.Tokenizer) -> Kind:
    return Kind(
        _wrapped(HuggingFaceVocabulary(backend)),
        lambda ids: backend.decode(ids, skip_special_tokens=False),
        lambda text: backend.encode(text, add_special_tokens=False).ids,
    )


def _with_specials(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return backend


def _byte_level() -> Kind:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {c: i for i, c in enumerate([*letters, "Ġt", "Ġth", "æĿ"])}
    backend = tokenizers.Tokenizer(models.BPE(ids, [("Ġ", "t"), ("Ġt", "h"), ("æ", "Ŀ")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return _huggingface(_with_specials(backend))


def _byte_fallback(strip: bool) -> Kind:
    pieces = {piece: i for i, piece in enumerate(["<unk>", *BYTES, *WORDS])}
    backend = tokenizers.Tokenizer(models.BPE(pieces, [], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    return _huggingface(_with_specials(backend))


def _words(decoder: decoders.Decoder | None, pieces: Sequence[str]) -> Kind:
    ids = {piece: i for i, piece in enumerate(["<unk>", *pieces])}
    backend = tokenizers.Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if decoder is not None:
        backend.decoder = decoder
    return _huggingface(_with_specials(backend))


def _sentencepiece(data: bytes) -> Kind:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tokenizer.model").write_bytes(data)
        tokenizer = load_tokenizer(Path(folder))
    processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    return Kind(tokenizer, lambda ids: processor.decode(list(ids)), processor.encode)


@cache
def unigram(**settings: object) -> bytes:
    """A Unigram model as sentencepiece makes them by default: NFKC, and no extra spaces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([PROSE] * 50),
        model_writer=model,
        vocab_size=340,
        hard_vocab_limit=False,
        minloglevel=2,
        **{"model_type": "unigram", "byte_fallback": True, "character_coverage": 0.98} | settings,
    )
    return model.getvalue()


def bpe(**settings: object) -> bytes:
    """The vocabulary of tiny_sentencepiece.model with other settings of its normalizer."""
    model = ModelProto.FromString((GOLDEN / "tiny_sentencepiece.model").read_bytes())
    for name, value in settings.items():
        setattr(model.normalizer_spec, name, value)
    return bytes(model.SerializeToString())


SENTENCEPIECE: dict[str, Callable[[], Kind]] = {
    "bpe": lambda: _sentencepiece(bpe()),
    "bpe without a space": lambda: _sentencepiece(bpe(add_dummy_prefix=False)),
    "bpe without extra spaces": lambda: _sentencepiece(bpe(remove_extra_whitespaces=True)),
    "unigram": lambda: _sentencepiece(unigram()),
    "unigram that keeps text": lambda: _sentencepiece(
        unigram(normalization_rule_name="identity", remove_extra_whitespaces=False)
    ),
    "unigram without bytes": lambda: _sentencepiece(unigram(byte_fallback=False)),
}
HUGGINGFACE: dict[str, Callable[[], Kind]] = {
    "byte-level": _byte_level,
    "byte fallback": lambda: _byte_fallback(strip=True),
    "byte fallback without a space": lambda: _byte_fallback(strip=False),
    "metaspace": lambda: _words(decoders.Metaspace(), WORDS),
    "metaspace without a space": lambda: _words(decoders.Metaspace(prepend_scheme="never"), WORDS),
    "word pieces": lambda: _words(decoders.WordPiece(), ["the", "cat", "##s", ".", "'", "##t"]),
    "words": lambda: _words(None, ["the", "cat", "東"]),
    "suffixes": lambda: _words(decoders.BPEDecoder(), ["the</w>", "ca", "t</w>", "s</w>"]),
}


@cache
def kind(name: str) -> Kind:
    return (SENTENCEPIECE | HUGGINGFACE)[name]()
