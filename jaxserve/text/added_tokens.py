"""Added tokens: tokens that are found in a text before the rest of it is encoded, with the rules of
transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, models

from checkpoints.json_file import read_json
from jaxserve.errors import CheckpointError
from jaxserve.models.fields import FLAG, OBJECT, TEXT, check, either, list_of

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
_NAMED_FIELDS = {
    **dict.fromkeys(SPECIAL_NAMES, either(TEXT, OBJECT)),
    "additional_special_tokens": list_of(either(TEXT, OBJECT)),
}
_CONFIG_FIELDS = {"added_tokens_decoder": OBJECT, **_NAMED_FIELDS}
_TOKEN_FIELDS = {
    "content": TEXT,
    **dict.fromkeys(("special", "lstrip", "rstrip", "single_word", "normalized"), FLAG),
}


class AddedTokenSplitter:
    """Finds added tokens in a text. The longest one that begins first wins.

    Args:
        tokens: by id.
    """

    def __init__(self, tokens: Mapping[int, AddedToken]) -> None:
        self._ids = list(tokens)
        # A tokenizer for which all other text is one token, so that the search is the library's.
        self._backend = tokenizers.Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        self._backend.add_tokens(list(tokens.values()))

    def split(self, text: str) -> list[int | str]:
        """The text's added tokens as ids, and what is between them as text."""
        if not self._ids:
            return [text] if text else []
        found = self._backend.encode_batch([text])[0]
        return [
            text[start:end] if number == 0 else self._ids[number - 1]
            for number, (start, end) in zip(found.ids, found.offsets, strict=True)
        ]


def read_added_tokens(folder: Path, pieces: Mapping[str, int]) -> dict[int, AddedToken]:
    """The added tokens of a Hugging Face folder, by id: those of tokenizer_config.json,
    added_tokens.json and special_tokens_map.json. Named tokens without an id are left out.

    Args:
        pieces: ids of the vocabulary that they are added to.

    Raises:
        CheckpointError: a file is damaged; names the field.
    """
    config = read_json(folder / "tokenizer_config.json", _CONFIG_FIELDS, optional=True)
    named = read_json(folder / "special_tokens_map.json", _NAMED_FIELDS, optional=True)
    plain = read_json(folder / "added_tokens.json", {}, optional=True)
    special = {_content(token) for source in (config, named) for token in _named(source)}
    tokens: dict[int, AddedToken] = {}
    for content, token_id in plain.items():
        if not isinstance(token_id, int) or token_id < 0:
            raise CheckpointError(f"{folder / 'added_tokens.json'}: {content} has no id")
        tokens[token_id] = _added_token(content, content in special)
    for content in sorted(special & pieces.keys()):
        tokens[pieces[content]] = _added_token(content, True)
    for key, fields in (config.get("added_tokens_decoder") or {}).items():
        tokens[_id(key, folder)] = _from_fields(fields, folder)
    return tokens


def special_tokens(source: Mapping[str, Any]) -> dict[str, str]:
    """The tokens that have a name (bos_token, ...) in tokenizer_config.json."""
    given = {name: source.get(name) for name in SPECIAL_NAMES}
    return {name: _content(token) for name, token in given.items() if token}


def _named(source: Mapping[str, Any]) -> list[str | dict[str, Any]]:
    given = [source.get(name) for name in SPECIAL_NAMES]
    return [token for token in [*given, *(source.get("additional_special_tokens") or [])] if token]


def _content(token: str | Mapping[str, Any]) -> str:
    content = token if isinstance(token, str) else token.get("content")
    return content if isinstance(content, str) else ""


def _added_token(content: str, special: bool) -> AddedToken:
    return AddedToken(content, special=special, normalized=not special)


def _id(key: str, folder: Path) -> int:
    if not key.isdecimal():
        raise CheckpointError(
            f"{folder / 'tokenizer_config.json'}: added_tokens_decoder has the key {key[:80]!r}, "
            "which isn't an id"
        )
    return int(key)


def _from_fields(fields: Any, folder: Path) -> AddedToken:
    if not isinstance(fields, dict) or not _content(fields):
        raise CheckpointError(
            f"{folder / 'tokenizer_config.json'}: an entry of added_tokens_decoder has no content"
        )
    check(fields, _TOKEN_FIELDS)
    flags = {name: fields[name] for name in _TOKEN_FIELDS if name in fields and name != "content"}
    return AddedToken(fields["content"], **flags)
