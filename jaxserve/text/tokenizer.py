"""Tokenizer: encodes and decodes text, and applies chat templates, by a model's own files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from checkpoints.generation_config import read_eos_token_ids
from checkpoints.gguf_header import GGUFHeader, read_header
from checkpoints.json_file import read_json
from jaxserve.errors import CheckpointError, ModelNotFoundError
from jaxserve.models.fields import FLAG, OBJECT, TEXT, TOKEN_IDS, Kind, either, list_of, token_ids
from jaxserve.sampling.grammar_vocabulary import GrammarVocabulary
from jaxserve.text.added_tokens import SPECIAL_NAMES, special_tokens
from jaxserve.text.chat_template import DEFAULT, ChatTemplate
from jaxserve.text.end_of_turn import end_in_template, known_ends
from jaxserve.text.gguf_vocab import build_vocabulary
from jaxserve.text.huggingface_vocabulary import HuggingFaceVocabulary
from jaxserve.text.incremental_decoder import (
    IncrementalDecoder,
    incremental_decoder,
    text_without_end,
    token_bytes_in_context,
)
from jaxserve.text.vocabulary import Vocabulary

_NAMED_TEMPLATE = Kind(
    'an object of "name" and "template"',
    lambda v: (
        isinstance(v, dict)
        and isinstance(v.get("name"), str)
        and isinstance(v.get("template"), str)
    ),
)
_CONFIG_FIELDS = {
    **dict.fromkeys(("add_bos_token", "add_eos_token", "legacy"), FLAG),
    "chat_template": either(TEXT, list_of(_NAMED_TEMPLATE)),
    **dict.fromkeys(SPECIAL_NAMES, either(TEXT, OBJECT)),
}


class Tokenizer:
    """One model's tokenizer. Thread-safe.

    Args:
        vocabulary: encodes and decodes.
        eos_token_ids: ids that end an output by the model's files, the usual one first.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        chat_template: ChatTemplate,
        bos_token_id: int | None,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self.vocabulary = vocabulary
        self.bos_token_id = bos_token_id
        self.num_ids = vocabulary.num_ids
        self.longest_piece = vocabulary.longest_piece
        self.vocab_size = vocabulary.size
        self.special_ids = vocabulary.special_ids
        empty = vocabulary.encode("", add_special_tokens=True)
        self._adds_bos = bos_token_id is not None and empty[:1] == [bos_token_id]
        self._named_ends = eos_token_ids
        self._set_chat_template(chat_template)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text. Special tokens that are written in it become their ids.

        Args:
            add_special_tokens: add BOS (and EOS) if the model's files say so; a text that begins
                with BOS gets no second one.
        """
        ids = self.vocabulary.encode(text, add_special_tokens)
        if add_special_tokens and self._adds_bos and ids[:2] == [self.bos_token_id] * 2:
            del ids[0]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids; invalid UTF-8 becomes U+FFFD, and unknown ids have no text."""
        return self.vocabulary.decode(self._shown(ids) if skip_special_tokens else ids)

    def decode_echo(self, prompt: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of a prompt that is shown before its output: as decode(), but without an
        unfinished character at the end, which a decoder() with echoes_prompt writes."""
        shown = self._shown(prompt) if skip_special_tokens else list(prompt)
        return text_without_end(self.vocabulary, shown)

    def decoder(
        self, prompt: Sequence[int], skip_special_tokens: bool = True, echoes_prompt: bool = False
    ) -> IncrementalDecoder:
        """A new incremental_decoder() of this vocabulary."""
        return incremental_decoder(
            self.vocabulary,
            prompt,
            skip_special_tokens=skip_special_tokens,
            echoes_prompt=echoes_prompt,
        )

    def special_tokens_in(self, texts: Sequence[str]) -> dict[int, str]:
        """The special tokens that are written in texts, by id."""
        found = {match[0] for text in texts for match in self._special_pattern.finditer(text)}
        ids = {self.vocabulary.piece_id(token): token for token in found}
        return {i: token for i, token in ids.items() if i is not None}

    def grammar_vocabulary(self, num_logits: int) -> GrammarVocabulary:
        """The tokens and their bytes, for grammars.

        Args:
            num_logits: V, the model's.
        """
        return GrammarVocabulary(
            [token_bytes_in_context(self.vocabulary, i) for i in range(self.num_ids)],
            sorted(self.special_ids),
            list(self.eos_token_ids),
            self.vocabulary.grammar_encoder(),
            num_logits,
        )

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end an output, the usual one first: those that the model's files name, the
        well-known ones, and the one that the chat template writes after an assistant's message."""
        return self._eos_token_ids

    def is_special(self, token: str) -> bool:
        """Whether it is the text of a special token."""
        return self.vocabulary.piece_id(token) in self.special_ids

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        tokens = filter(None, map(self.vocabulary.piece, self.special_ids))
        return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)")

    def _shown(self, ids: Sequence[int]) -> list[int]:
        return [i for i in ids if i not in self.special_ids]

    def _set_chat_template(self, chat_template: ChatTemplate) -> None:
        self._chat_template = chat_template
        written = end_in_template(chat_template, self.vocabulary)
        ends = [*self._named_ends, *known_ends(self.vocabulary), written]
        self._eos_token_ids = _unique(ends)

    def template_mentions(self, word: str) -> bool:
        """Whether the chat template contains this text."""
        return self._chat_template.mentions(word)

    def template_reads(self, name: str) -> bool:
        """Whether the chat template reads an argument of this name."""
        return self._chat_template.reads(name)

    def use_chat_template(self, source: str) -> None:
        """Uses another chat template, in Jinja, instead of the model's own."""
        self._set_chat_template(self._chat_template.replaced_by(source))

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
    vocabulary = build_vocabulary(header)
    key = "tokenizer.chat_template"
    sources = {DEFAULT: header.require(key, str)} if key in header.metadata else {}
    for name in header.get("tokenizer.chat_templates", list, []):
        sources[name] = header.require(f"{key}.{name}", str)
    tokens: list[str] = header.require("tokenizer.ggml.tokens", list)
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    named = {
        f"{short}_token": tokens[token_id]
        for short, name in names.items()
        if (token_id := header.token_id(name)) is not None
    }
    return Tokenizer(
        vocabulary,
        ChatTemplate(sources, named),
        header.token_id("bos"),
        _unique([header.token_id("eos"), header.token_id("eot")]),
    )


def _from_folder(path: Path) -> Tokenizer:
    config = read_json(path / "tokenizer_config.json", _CONFIG_FIELDS, optional=True)
    named = special_tokens(config)
    file, model = path / "tokenizer.json", path / "tokenizer.model"
    vocabulary: Vocabulary
    if file.exists():
        vocabulary = _from_tokenizer_json(file)
    elif model.exists():
        # Imported here, since most models don't need the library.
        from jaxserve.text.sentencepiece_files import read_folder

        vocabulary, own = read_folder(path, config, named)
        named = own | named
    else:
        raise ModelNotFoundError(f"{path}: it has no tokenizer.json and no tokenizer.model")
    ids = {name: vocabulary.piece_id(token) for name, token in named.items()}
    more = read_eos_token_ids(path)
    if not more:
        settings = read_json(path / "config.json", {"eos_token_id": TOKEN_IDS}, optional=True)
        more = token_ids(settings.get("eos_token_id"))
    return Tokenizer(
        vocabulary,
        ChatTemplate(_folder_templates(path, config), named),
        ids.get("bos_token"),
        _unique([ids.get("eos_token"), *more]),
    )


def _from_tokenizer_json(file: Path) -> Vocabulary:
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises plain Exception
        raise CheckpointError(f"{file}: damaged ({error})") from None
    # Settings from training, which would cut or pad prompts.
    backend.no_truncation()
    backend.no_padding()
    return HuggingFaceVocabulary(backend)


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
