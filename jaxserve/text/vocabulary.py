"""Vocabulary: what a tokenizer needs of the library that encodes and decodes. TokenBytes: the bytes
that each token of a vocabulary adds to a text."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

from jaxserve.sampling.grammar_vocabulary import GrammarEncoder


class TokenBytes:
    """The bytes of tokens, looked up once each. A token's bytes depend on no other token, except
    that the first token of a text may lack a leading space.

    Args:
        rest: a token's bytes after other tokens; b"" for ids that the vocabulary doesn't have.
        first: a token's bytes at the beginning of a text; None if they are the same.
        repeats_first: the next token counts as the first, too, while the text is empty.
        errors: the codec error handler that writes invalid UTF-8: "replace", or EACH_BYTE.
    """

    def __init__(
        self,
        rest: Callable[[int], bytes],
        first: Callable[[int], bytes] | None = None,
        repeats_first: bool = False,
        errors: str = "replace",
    ) -> None:
        self._look_up, self.first, self._repeats = rest, first or rest, repeats_first
        self.has_first, self.errors = first is not None, errors
        self._bytes: dict[int, bytes] = {}
        self._texts: dict[int, str | None] = {}

    def rest(self, token_id: int) -> bytes:
        """The token's bytes anywhere but at the beginning of a text."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._look_up(token_id)
        return known

    def text(self, token_id: int) -> str | None:
        """rest() as text; None if it isn't whole characters."""
        if token_id not in self._texts:
            try:
                self._texts[token_id] = self.rest(token_id).decode()
            except UnicodeDecodeError:
                self._texts[token_id] = None
        return self._texts[token_id]

    def is_over(self, token_id: int) -> bool:
        """Whether the token after this first token counts as a later one."""
        return bool(self.first(token_id) if self._repeats else self.rest(token_id))

    def num_first(self, ids: Sequence[int]) -> int:
        """How many of a text's tokens count as its first; all of them, if the next does too."""
        if not self.has_first:
            return 0
        return next((i for i, token_id in enumerate(ids, 1) if self.is_over(token_id)), len(ids))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        first = self.num_first(ids)
        data = [*map(self.first, ids[:first]), *map(self.rest, ids[first:])]
        return b"".join(data).decode("utf-8", self.errors)


def _replace_each(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\ufffd" * (error.end - error.start), error.end


# Sentencepiece writes one U+FFFD for each byte of an unfinished character; Python writes one.
EACH_BYTE = "jaxserve.each_byte"
codecs.register_error(EACH_BYTE, _replace_each)


class Vocabulary(Protocol):
    """The tokens of one model, and the encoding of text as tokens. Thread-safe.

    Attributes:
        num_ids: one more than the highest id.
        size: number of tokens; less than num_ids if ids are missing between.
        longest_piece: most characters of a text that one token may stand for.
        special_ids: tokens that aren't shown in a text unless the user asks for them.
        added_ids: these, and further tokens that are found in a text before it is encoded.
        token_bytes: None if a token's bytes depend on the tokens before it.
    """

    num_ids: int
    size: int
    longest_piece: int
    special_ids: frozenset[int]
    added_ids: frozenset[int]
    token_bytes: TokenBytes | None

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of a text. Added tokens that are written in it become their ids.

        Args:
            add_special_tokens: add BOS and EOS if the model's files say so.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included. Invalid UTF-8 becomes U+FFFD, and ids that the
        vocabulary doesn't have add nothing."""

    def piece(self, token_id: int) -> str | None:
        """The token as the vocabulary writes it."""

    def piece_id(self, piece: str) -> int | None:
        """The id of a token, as the vocabulary writes it."""

    def grammar_encoder(self) -> GrammarEncoder:
        """Encodes text that continues another text: it adds no space and changes no character."""
