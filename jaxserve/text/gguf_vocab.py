"""The vocabulary in GGUF metadata: byte-level BPE, or sentencepiece's."""

from __future__ import annotations

from collections.abc import Callable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers.processors import TemplateProcessing

from checkpoints.gguf_header import GGUFHeader
from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.text.huggingface_vocabulary import HuggingFaceVocabulary
from jaxserve.text.vocabulary import Vocabulary

# tokenizer.ggml.token_type
CONTROL, USER_DEFINED = 3, 4

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def _gpt2() -> pre.PreTokenizer:
    return pre.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> pre.PreTokenizer:
    return pre.Sequence([pre.Digits(individual_digits=True), _gpt2()])


def _split(pattern: str) -> pre.PreTokenizer:
    return pre.Sequence(
        [
            pre.Split(Regex(pattern), behavior="isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


# tokenizer.ggml.pre
_PRE_TOKENIZERS: dict[str, Callable[[], pre.PreTokenizer]] = {
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": lambda: _split(_LLAMA3),
    "qwen2": lambda: _split(_QWEN2),
}


def build_vocabulary(header: GGUFHeader) -> Vocabulary:
    """The vocabulary of a GGUF file, with its ids.

    Raises:
        UnsupportedModelError: another kind of vocabulary, or an unknown pre-tokenizer.
        CheckpointError: the vocabulary is incomplete or contradicts itself.
    """
    model = header.require("tokenizer.ggml.model", str)
    if model == "gpt2":
        return HuggingFaceVocabulary(byte_level_backend(header))
    if model in ("llama", "t5"):
        # Imported here, since most models don't need the library.
        from jaxserve.text.sentencepiece_files import read_gguf

        is_bpe = model == "llama"
        around = _bos_and_eos(header, add_bos=is_bpe)
        return read_gguf(header, is_bpe, around)
    raise UnsupportedModelError(
        f"{header.path}: the tokenizer model {model} isn't implemented; supported: gpt2, llama, t5"
    )


def byte_level_backend(header: GGUFHeader) -> Tokenizer:
    """The tokenizer of a GGUF file with byte-level BPE.

    Raises:
        UnsupportedModelError: an unknown pre-tokenizer.
        CheckpointError: the vocabulary is incomplete or contradicts itself.
    """
    name = header.get("tokenizer.ggml.pre", str, None)
    if name not in _PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"{header.path}: the pre-tokenizer {name} isn't implemented; "
            f"supported: {', '.join(_PRE_TOKENIZERS)}"
        )
    tokens: list[str] = header.require("tokenizer.ggml.tokens", list)
    kinds: list[int] = header.get("tokenizer.ggml.token_type", list, [])
    merges = header.require("tokenizer.ggml.merges", list)
    llama3 = name == "llama-bpe"
    try:
        vocab = dict(zip(tokens, range(len(tokens)), strict=True))
        pairs = [tuple(merge.split(" ", 1)) for merge in merges]
        # In Llama 3 a word that is a token becomes that token, whatever the merges.
        bpe = models.BPE(vocab, pairs, ignore_merges=llama3)
    except Exception as error:  # tokenizers raises plain Exception
        raise CheckpointError(f"{header.path}: damaged vocabulary ({error})") from None
    backend = Tokenizer(bpe)
    if name == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _PRE_TOKENIZERS[name]()
    backend.decoder = decoders.ByteLevel()
    added = {CONTROL: True, USER_DEFINED: False}
    backend.add_tokens(
        [
            AddedToken(token, special=added[kind], normalized=False)
            for token, kind in zip(tokens, kinds, strict=False)
            if kind in added
        ]
    )
    around = _bos_and_eos(header, add_bos=llama3)
    if around:
        before = [tokens[i] for name, i in around.items() if name == "bos"]
        after = [tokens[i] for name, i in around.items() if name == "eos"]
        backend.post_processor = TemplateProcessing(
            single=[*before, "$A", *after], special_tokens=[(tokens[i], i) for i in around.values()]
        )
    return backend


def _bos_and_eos(header: GGUFHeader, add_bos: bool) -> dict[str, int]:
    """The ids of the tokens that the file asks to add around each text, by name: bos, eos."""
    wanted = {
        "bos": header.get("tokenizer.ggml.add_bos_token", bool, add_bos),
        "eos": header.get("tokenizer.ggml.add_eos_token", bool, False),
    }
    around = {}
    for name in (name for name, add in wanted.items() if add):
        token_id = header.token_id(name)
        if token_id is None:
            raise CheckpointError(f"{header.path}: it has add_{name}_token, but no {name} token")
        around[name] = token_id
    return around
