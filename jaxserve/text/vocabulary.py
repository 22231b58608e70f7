"""Vocabulary: what a tokenizer needs of the library that encodes and decodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jaxserve.sampling.grammar_vocabulary import GrammarEncoder
from jaxserve.text.token_bytes import TokenBytes


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
