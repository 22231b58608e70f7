"""Incremental decoders: the text that each token adds to the text of those before it.

A decoder starts from the prompt, since the text of a token may depend on its left neighbours: a
space that is missing at the beginning of a text, or bytes that complete a character.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from jaxserve.text.vocabulary import TokenBytes, Vocabulary

# A character has at most 4 bytes, so 4 tokens: a text that then still ends in U+FFFD isn't waiting
# for the rest of a character, but invalid.
_MAX_PENDING_TOKENS = 4
# Tokens whose end may be the beginning of a character.
_CONTEXT_TOKENS = 8


class IncrementalDecoder(Protocol):
    """Work per token doesn't depend on the number of tokens before it."""

    def add(self, token_id: int) -> str:
        """Text that this token completes."""

    def flush(self) -> str:
        """The rest of the text; an unfinished character becomes U+FFFD."""

    def next_bytes(self, token_id: int) -> bytes:
        """The bytes that this token would add to the text now, if it were shown."""


def incremental_decoder(
    vocabulary: Vocabulary,
    prompt: Sequence[int] = (),
    *,
    skip_special_tokens: bool = True,
    echoes_prompt: bool = False,
) -> IncrementalDecoder:
    """A decoder of the output after a prompt.

    The prompt's text and the decoder's text together are the text of all ids. If the prompt ends
    within a character, the prompt's text ends in U+FFFD; if the output completes the character, the
    decoder's text begins with it.

    Args:
        echoes_prompt: text_without_end() is shown as the prompt's text. What the prompt's
            unfinished character becomes, also U+FFFD, is then part of the decoder's text.
    """
    hidden = vocabulary.special_ids if skip_special_tokens else frozenset[int]()
    if vocabulary.token_bytes is not None:
        return ByteDecoder(vocabulary.token_bytes, hidden, prompt, echoes_prompt)
    return WindowDecoder(vocabulary, hidden, prompt, echoes_prompt)


def text_without_end(vocabulary: Vocabulary, prompt: Sequence[int]) -> str:
    """A prompt's text without the U+FFFD that stands for an unfinished character at its end.

    Args:
        prompt: without the tokens that aren't shown.
    """
    text = vocabulary.decode(prompt)
    if (table := vocabulary.token_bytes) is None:
        return text.rstrip("\ufffd")
    return text.removesuffix(_unfinished(table, reversed(prompt)).decode("utf-8", table.errors))


class ByteDecoder:
    """Decodes vocabularies whose tokens are bytes, wherever they stand: UTF-8, byte by byte."""

    def __init__(
        self,
        table: TokenBytes,
        hidden: frozenset[int],
        prompt: Sequence[int],
        echoes_prompt: bool,
    ) -> None:
        self._table, self._hidden = table, hidden
        self._utf8 = codecs.getincrementaldecoder("utf-8")(table.errors)
        self._is_first = table.has_first and self._begins_text(prompt)
        unfinished = _unfinished(table, (i for i in reversed(prompt) if i not in hidden))
        self._utf8.decode(unfinished)
        # What the prompt's own text has for its unfinished bytes.
        self._shown = "" if echoes_prompt else unfinished.decode("utf-8", table.errors)
        self._is_plain = not (self._is_first or unfinished)

    def add(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        if self._is_plain and (text := self._table.text(token_id)) is not None:
            return text
        text = self._utf8.decode(self.next_bytes(token_id))
        if self._is_first:
            self._is_first = not self._table.is_over(token_id)
        self._is_plain = not (self._is_first or self._utf8.getstate()[0])
        return self._without_shown(text)

    def flush(self) -> str:
        return self._without_shown(self._utf8.decode(b"", final=True))

    def next_bytes(self, token_id: int) -> bytes:
        return (self._table.first if self._is_first else self._table.rest)(token_id)

    def _without_shown(self, text: str) -> str:
        if text and self._shown:
            text, self._shown = text.removeprefix(self._shown), ""
        return text

    def _begins_text(self, prompt: Sequence[int]) -> bool:
        """Whether nothing before the output counts as the text's first token."""
        visible = (i for i in prompt if i not in self._hidden)
        return not any(map(self._table.is_over, visible))


class WindowDecoder:
    """Decodes any other vocabulary: what the last tokens add to the text of those before them."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        hidden: frozenset[int],
        prompt: Sequence[int],
        echoes_prompt: bool,
    ) -> None:
        self._vocabulary, self._hidden = vocabulary, hidden
        self._ids: list[int] = []
        for token_id in reversed(prompt):
            if len(self._ids) == _CONTEXT_TOKENS:
                break
            if token_id not in hidden:
                self._ids.insert(0, token_id)
        self._num_released = len(self._ids)
        self._released = vocabulary.decode(self._ids)
        if echoes_prompt:
            self._released = self._released.rstrip("\ufffd")

    def add(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        self._ids.append(token_id)
        text = self._vocabulary.decode(self._ids)
        pending = len(self._ids) - self._num_released
        if text.endswith("\ufffd") and pending < _MAX_PENDING_TOKENS:
            return ""
        added = _after(self._released, text)
        self._ids = self._ids[self._num_released :]
        self._num_released = len(self._ids)
        self._released = self._vocabulary.decode(self._ids)
        return added

    def flush(self) -> str:
        return _after(self._released, self._vocabulary.decode(self._ids))

    def next_bytes(self, token_id: int) -> bytes:
        before = self._vocabulary.decode(self._ids)
        text = self._vocabulary.decode([*self._ids, token_id])
        return _after(before, text).encode()


def _after(before: str, text: str) -> str:
    """The part of a text that wasn't there before."""
    if text.startswith(before):
        return text[len(before) :]
    pairs = zip(before, text, strict=False)
    return text[next((i for i, (a, b) in enumerate(pairs) if a != b), len(text)) :]


def token_bytes_in_context(vocabulary: Vocabulary, token_id: int) -> bytes:
    """The bytes that a token adds to a text that has begun."""
    if (table := vocabulary.token_bytes) is not None:
        return table.rest(token_id)
    return WindowDecoder(vocabulary, frozenset(), [0], False).next_bytes(token_id)


def _unfinished(table: TokenBytes, backwards: Iterable[int]) -> bytes:
    """The bytes of the unfinished character in which tokens end.

    Args:
        backwards: the tokens, the last one first.
    """
    end = b""
    for token_id in backwards:
        end = table.rest(token_id) + end
        if len(end) >= 3:
            break
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(end)
    return decoder.getstate()[0]
