"""TokenBytes: the bytes that each token of a vocabulary adds to a text."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


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
