"""HuggingFaceVocabulary: a vocabulary of the `tokenizers` library (tokenizer.json)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from jaxserve.sampling.grammar_vocabulary import GrammarEncoder
from jaxserve.text.vocabulary import EACH_BYTE, TokenBytes

_BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The byte of each character in byte-level BPE (GPT-2's encoder): printable Latin-1 characters
    are their own bytes, and the characters from U+0100 on the other bytes, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    alphabet = {chr(b): b for b in printable}
    return alphabet | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTES = _byte_alphabet()


class HuggingFaceVocabulary:
    """A `tokenizers.Tokenizer` as a Vocabulary."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.num_ids = 1 + max(vocabulary.values(), default=-1)
        self.size: int = backend.get_vocab_size(with_added_tokens=True)
        self.longest_piece = max(map(len, vocabulary), default=1)
        added = backend.get_added_tokens_decoder()
        self.added_ids = frozenset(added)
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.token_bytes = _token_bytes(backend)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # A batch of one, since encode_batch() releases the GIL, and encode() does not.
        batch = self.backend.encode_batch([text], add_special_tokens=add_special_tokens)
        ids: list[int] = batch[0].ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        if self.token_bytes is not None:
            return self.token_bytes.decode(ids)
        return self.backend.decode(ids, skip_special_tokens=False)

    def piece(self, token_id: int) -> str | None:
        return self.backend.id_to_token(token_id) if token_id >= 0 else None

    def piece_id(self, piece: str) -> int | None:
        return self.backend.token_to_id(piece)

    def grammar_encoder(self) -> GrammarEncoder:
        settings = json.loads(self.backend.to_str())
        settings["normalizer"] = _marks_alone(settings["normalizer"])
        settings |= dict.fromkeys(("post_processor", "truncation", "padding"))
        for step in _steps(settings["pre_tokenizer"]):
            if step["type"] == "Metaspace":
                step["prepend_scheme"] = "never"
            elif step["type"] == "ByteLevel":
                step["add_prefix_space"] = False
        return GrammarEncoder(tokenizer_json=json.dumps(settings))


def _state(part: Any) -> dict[str, Any] | None:
    """A part of a tokenizer as in tokenizer.json."""
    return None if part is None else json.loads(part.__getstate__())


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder, in order."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    inner = part.get("decoders") or part.get("normalizers") or part.get("pretokenizers") or []
    return [step for one in inner for step in _steps(one)]


def _marks_alone(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    """The steps of a normalizer that write the space as the vocabulary does."""
    marks = [
        step
        for step in _steps(normalizer)
        if step["type"] == "Replace" and step["pattern"] == {"String": " "}
    ]
    return {"type": "Sequence", "normalizers": marks} if marks else None


def _token_bytes(backend: Tokenizer) -> TokenBytes | None:
    """Bytes by the vocabulary's decoder; None if it isn't one of the usual kinds."""
    steps = _steps(_state(backend.decoder))
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return TokenBytes(lambda i: _byte_level(_piece(backend, i)))
    if [step["type"] for step in steps] == ["Metaspace"]:
        return _with_marks(backend, steps[0])
    return _with_byte_pieces(backend, steps)


def _piece(backend: Tokenizer, token_id: int) -> str:
    return (backend.id_to_token(token_id) if token_id >= 0 else None) or ""


def _byte_level(piece: str) -> bytes:
    values = [_BYTES.get(c) for c in piece]
    # Added tokens are plain text; with a space, for example, they aren't in the alphabet.
    return bytes(v for v in values if v is not None) if None not in values else piece.encode()


def _with_marks(backend: Tokenizer, decoder: dict[str, Any]) -> TokenBytes:
    """Pieces with a character for the space, which isn't written at the beginning of a text."""
    mark = decoder["replacement"]
    dropped = decoder["prepend_scheme"] != "never"
    return TokenBytes(
        lambda i: _piece(backend, i).replace(mark, " ").encode(),
        (lambda i: _piece(backend, i).replace(mark, "").encode()) if dropped else None,
    )


def _with_byte_pieces(backend: Tokenizer, steps: list[dict[str, Any]]) -> TokenBytes | None:
    """As sentencepiece's vocabularies: text, or one byte as <0xE6>.

    The `tokenizers` library writes U+FFFD for each byte of a run of them that isn't valid as a
    whole, valid characters included. Here, as in sentencepiece, valid characters stay: a text that
    is streamed can't change what was sent.
    """
    replaced: list[tuple[str, str]] = []
    while steps and steps[0]["type"] == "Replace" and "String" in steps[0]["pattern"]:
        replaced.append((steps[0]["pattern"]["String"], steps[0]["content"]))
        steps = steps[1:]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    known = [{"type": "ByteFallback"}, {"type": "Fuse"}]
    if steps not in (known, [*known, strip]):
        return None

    def rest(token_id: int) -> bytes:
        piece = _piece(backend, token_id)
        for old, new in replaced:
            piece = piece.replace(old, new)
        match = _BYTE_PIECE.fullmatch(piece)
        return bytes([int(match[1], 16)]) if match else piece.encode()

    first = (lambda i: rest(i).removeprefix(b" ")) if strip in steps else None
    return TokenBytes(rest, first, errors=EACH_BYTE)
