"""Tokenizer: encodes and decodes text, and applies chat templates, by a model's own files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders
from tokenizers.processors import TemplateProcessing

from checkpoints.generation_config import read_eos_token_ids
from checkpoints.gguf_header import GGUFHeader, read_header
from checkpoints.json_file import read_json
from jaxserve.errors import CheckpointError, ModelNotFoundError
from jaxserve.models.fields import FLAG, OBJECT, TEXT, TOKEN_IDS, Kind, either, list_of, token_ids
from jaxserve.text import sentencepiece
from jaxserve.text.chat_template import DEFAULT, ChatTemplate
from jaxserve.text.gguf_vocab import build_backend
from jaxserve.text.sentencepiece_file import read_vocabulary


def _byte_alphabet() -> dict[str, int]:
    """The byte of each character in byte-level BPE (GPT-2's encoder): printable Latin-1 characters
    are their own bytes, and the characters from U+0100 on the other bytes, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    alphabet = {chr(b): b for b in printable}
    return alphabet | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTES = _byte_alphabet()
_KINDS = ("bos", "eos", "unk", "pad")
_NAMED_TEMPLATE = Kind(
    'an object of "name" and "template"',
    lambda v: (
        isinstance(v, dict)
        and isinstance(v.get("name"), str)
        and isinstance(v.get("template"), str)
    ),
)
_CONFIG_FIELDS = {
    "add_bos_token": FLAG,
    "chat_template": either(TEXT, list_of(_NAMED_TEMPLATE)),
    **dict.fromkeys((f"{kind}_token" for kind in _KINDS), either(TEXT, OBJECT)),
}


class Tokenizer:
    """One model's tokenizer. Thread-safe.

    Args:
        backend: encodes and decodes.
        eos_token_ids: ids that end an output, the usual one first.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        chat_template: ChatTemplate,
        bos_token_id: int | None,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self.backend = backend
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        # One more than the highest id; more than vocab_size if ids are missing between.
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.num_ids = 1 + max(vocabulary.values(), default=-1)
        self.longest_piece = max(map(len, vocabulary), default=1)  # characters
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.special_ids = frozenset(
            i for i, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self.is_byte_level = isinstance(backend.decoder, decoders.ByteLevel)
        empty: list[int] = backend.encode("", add_special_tokens=True).ids
        self._adds_bos = bos_token_id is not None and empty[:1] == [bos_token_id]
        self._chat_template = chat_template
        self._bytes: dict[int, bytes] = {}
        self._texts: dict[int, str | None] = {}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text. Special tokens that are written in it become their ids.

        Args:
            add_special_tokens: add BOS (and EOS) if the model's files say so; a text that begins
                with BOS gets no second one.
        """
        # A batch of one, since encode_batch() releases the GIL, and encode() does not.
        batch = self.backend.encode_batch([text], add_special_tokens=add_special_tokens)
        ids: list[int] = batch[0].ids
        if add_special_tokens and self._adds_bos and ids[:2] == [self.bos_token_id] * 2:
            del ids[0]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids; invalid UTF-8 becomes U+FFFD, and unknown ids have no text."""
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def id_to_bytes(self, token_id: int) -> bytes:
        """The bytes of a token (byte-level vocabularies only); b"" for an unknown id."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._look_up(token_id)
        return known

    def id_to_text(self, token_id: int) -> str | None:
        """A token's text if its bytes are whole characters (byte-level vocabularies only)."""
        if token_id not in self._texts:
            try:
                self._texts[token_id] = self.id_to_bytes(token_id).decode()
            except UnicodeDecodeError:
                self._texts[token_id] = None
        return self._texts[token_id]

    def _look_up(self, token_id: int) -> bytes:
        piece = self.backend.id_to_token(token_id) if token_id >= 0 else None
        if piece is None:
            return b""
        values = [_BYTES.get(c) for c in piece]
        # Added tokens are plain text; with a space, for example, they aren't in the alphabet.
        return bytes(v for v in values if v is not None) if None not in values else piece.encode()

    def is_special(self, token: str) -> bool:
        """Whether it is the text of a special token."""
        return self.backend.token_to_id(token) in self.special_ids

    def template_mentions(self, word: str) -> bool:
        """Whether the chat template contains this text."""
        return self._chat_template.mentions(word)

    def template_reads(self, name: str) -> bool:
        """Whether the chat template reads an argument of this name."""
        return self._chat_template.reads(name)

    def use_chat_template(self, source: str) -> None:
        """Uses another chat template, in Jinja, instead of the model's own."""
        self._chat_template = self._chat_template.replaced_by(source)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The conversation as prompt text. Encode it with add_special_tokens=False: templates
        write the special tokens themselves.

        Raises:
            InvalidRequestError: the model has no template, or its template refuses the messages.
        """
        return self._chat_template.render(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, **kwargs
        )


def load_tokenizer(path: Path) -> Tokenizer:
    """Reads the tokenizer of a GGUF file or of a Hugging Face folder.

    Raises:
        ModelNotFoundError: nothing is there, or a folder without tokenizer.json or tokenizer.model.
        UnsupportedModelError: a kind of vocabulary that isn't implemented.
        CheckpointError: the files are damaged.
    """
    if (path / "vocabulary.gguf").exists():  # converted from GGUF
        path = path / "vocabulary.gguf"
    return _from_folder(path) if path.is_dir() else _from_gguf(read_header(path))


def _from_gguf(header: GGUFHeader) -> Tokenizer:
    backend = build_backend(header)
    key = "tokenizer.chat_template"
    sources = {DEFAULT: header.require(key, str)} if key in header.metadata else {}
    for name in header.get("tokenizer.chat_templates", list, []):
        sources[name] = header.require(f"{key}.{name}", str)
    tokens: list[str] = header.require("tokenizer.ggml.tokens", list)
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    special_tokens = {
        f"{short}_token": tokens[token_id]
        for short, name in names.items()
        if (token_id := header.token_id(name)) is not None
    }
    return Tokenizer(
        backend,
        ChatTemplate(sources, special_tokens),
        header.token_id("bos"),
        _unique([header.token_id("eos"), header.token_id("eot")]),
    )


def _from_folder(path: Path) -> Tokenizer:
    config = read_json(path / "tokenizer_config.json", _CONFIG_FIELDS, optional=True)
    backend = _folder_backend(path, config)
    # Settings from training, which would cut or pad prompts.
    backend.no_truncation()
    backend.no_padding()
    special_tokens = {}
    for kind in _KINDS:
        token = config.get(f"{kind}_token")
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            special_tokens[f"{kind}_token"] = content
    ids = {kind: backend.token_to_id(token) for kind, token in special_tokens.items()}
    more = read_eos_token_ids(path)
    if not more:
        model = read_json(path / "config.json", {"eos_token_id": TOKEN_IDS}, optional=True)
        more = token_ids(model.get("eos_token_id"))
    return Tokenizer(
        backend,
        ChatTemplate(_folder_templates(path, config), special_tokens),
        ids.get("bos_token"),
        _unique([ids.get("eos_token"), *more]),
    )


def _folder_backend(path: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    file, model = path / "tokenizer.json", path / "tokenizer.model"
    if file.exists():
        try:
            return tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises plain Exception
            raise CheckpointError(f"{file}: damaged ({error})") from None
    if not model.exists():
        raise ModelNotFoundError(f"{path}: it has no tokenizer.json and no tokenizer.model")
    backend = sentencepiece.build(read_vocabulary(model))
    bos = backend.token_to_id("<s>" if "<s>" in backend.get_vocab() else "<bos>")
    if config.get("add_bos_token", True) and bos is not None:
        token = backend.id_to_token(bos)
        backend.post_processor = TemplateProcessing(
            single=[token, "$A"], special_tokens=[(token, bos)]
        )
    return backend


def _folder_templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name; their own files take precedence over tokenizer_config.json."""
    stored = config.get("chat_template") or {}
    if isinstance(stored, list):
        sources = {entry["name"]: entry["template"] for entry in stored}
    else:
        sources = {DEFAULT: stored} if stored else {}
    for file in sorted((path / "additional_chat_templates").glob("*.jinja")):
        sources[file.stem] = file.read_text(encoding="utf-8")
    if (path / "chat_template.jinja").exists():
        sources[DEFAULT] = (path / "chat_template.jinja").read_text(encoding="utf-8")
    return sources


def _unique(ids: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(i for i in ids if i is not None))
