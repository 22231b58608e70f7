"""Which tokens' logprobs belong to the text of a response, and not to its reasoning or calls."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence

from jaxserve.server.parsers import ParsedDelta
from jaxserve.server.wire.logprobs import ChatLogprob


def split_by_token(text: str, tokens: Sequence[ChatLogprob]) -> Iterator[tuple[str, ChatLogprob]]:
    """A text in the pieces that its tokens added, so that a parser can be fed token by token.

    Tokens without text, such as the end of the output, have an empty piece, and so have the first
    tokens of a character. What belongs to no token is in the last piece.
    """
    data, at = text.encode(), 0
    characters = codecs.getincrementaldecoder("utf-8")()
    for i, token in enumerate(tokens):
        own = bytes(token.bytes)
        end = at + len(own) if data.startswith(own, at) else at
        if i == len(tokens) - 1:
            end = len(data)
        yield characters.decode(data[at:end]), token
        at = end


class TextLogprobs:
    """Holds the logprobs of tokens until the parser has said what their text is.

    A parser tells no positions. It gives the parts of the text in order, soon after they came, and
    leaves out tags; so each part is looked for in the tokens' bytes from the end.
    """

    def __init__(self) -> None:
        self._tokens: list[ChatLogprob] = []  # whose text isn't known to be anything yet

    def add(self, token: ChatLogprob) -> None:
        self._tokens.append(token)

    def of_parts(self, parts: Sequence[ParsedDelta]) -> list[list[ChatLogprob]]:
        """For each part that the parser gives: the tokens that it has text of; none if it isn't
        content. All tokens up to the parts' end are forgotten."""
        if not self._tokens:
            return [[] for _ in parts]
        data = b"".join(bytes(token.bytes) for token in self._tokens)
        found: list[list[ChatLogprob]] = []
        limit, used = len(data), 0
        for part in reversed(parts):
            text, is_content = part.text.encode(), part.kind == "content"
            start = data.rfind(text, 0, limit)
            end = start + len(text)
            if start < 0 and not is_content:  # arguments are written anew
                found.append([])
                continue
            if start < 0:  # the text has marks in place of bytes that are no characters
                start, end = 0, limit
            covered = self._covered(start, end)
            found.append([self._tokens[i] for i in covered] if is_content else [])
            used = max([used, *(i + 1 for i in covered)])
            limit = start
        del self._tokens[:used]
        return found[::-1]

    def _covered(self, start: int, end: int) -> list[int]:
        """Places of the tokens that have bytes of [start, end)."""
        covered, at = [], 0
        for i, token in enumerate(self._tokens):
            begin, at = at, at + len(token.bytes)
            if begin < end and at > start:
                covered.append(i)
        return covered
