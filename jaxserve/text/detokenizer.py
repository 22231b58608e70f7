"""Detokenizer: ids of one choice to text as they arrive, cut at stop strings.

Work per token doesn't depend on the length of the output: a byte-level vocabulary is decoded byte
by byte, any other through a short window of its last tokens.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from jaxserve.outputs import CompletionDelta, FinishReason
from jaxserve.sampling.params import SamplingParams
from jaxserve.text.tokenizer import Tokenizer

# A character has at most 4 bytes, so 4 tokens: text that still ends in U+FFFD then isn't waiting
# for the rest of one, it is invalid.
_MAX_PENDING_TOKENS = 4


class Detokenizer:
    """The text of one choice.

    Args:
        params: stop strings, and whether special tokens show.
        index: which of the request's choices; put on every delta.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, index: int = 0) -> None:
        hidden = tokenizer.special_ids if params.skip_special_tokens else frozenset[int]()
        kind = _ByteDecoder if tokenizer.is_byte_level else _WindowDecoder
        self._decoder: _Decoder = kind(tokenizer, hidden)
        self._stop = _StopStrings(params.stop, params.include_stop_str_in_output)
        self._has_stops = bool(params.stop)
        self._shows_stop = params.include_stop_str_in_output
        self._index = index
        self.finished = False

    def add(
        self,
        token_ids: Sequence[int],
        finish_reason: FinishReason | None = None,
        stop_reason: int | str | None = None,
    ) -> CompletionDelta:
        """Takes the next ids and gives the text that they release.

        Bytes of an unfinished character are held back, and text that may yet turn into a stop
        string; the end releases both. When a stop string appears, the text ends before it and the
        ids with the token that completed it, and finish_reason becomes "stop" whatever was given.
        A token that ended the output (finish_reason "stop") isn't shown. Either stays in the text
        if the params include it. After the end, nothing more comes: empty deltas.

        Args:
            token_ids: one or more, or none with a finish_reason.
            finish_reason, stop_reason: as the engine found them; None while it goes on.
        """
        if self.finished:
            return CompletionDelta(self._index, "")
        if finish_reason is None and not self._has_stops:  # nearly always
            text = "".join(map(self._decoder.add, token_ids))
            return CompletionDelta(self._index, text, tuple(token_ids))
        shown = len(token_ids) - (finish_reason == "stop" and not self._shows_stop)
        parts = []
        for count, token_id in enumerate(token_ids[: max(shown, 0)], start=1):
            parts.append(self._stop.add(self._decoder.add(token_id)))
            if self._stop.matched is not None:
                return self._end(parts, token_ids[:count], "stop", self._stop.matched)
        if finish_reason is None:
            return CompletionDelta(self._index, "".join(parts), tuple(token_ids))
        parts.append(self._stop.add(self._decoder.flush()))
        if self._stop.matched is not None:
            return self._end(parts, token_ids, "stop", self._stop.matched)
        parts.append(self._stop.flush())
        return self._end(parts, token_ids, finish_reason, stop_reason)

    def _end(
        self,
        parts: list[str],
        token_ids: Sequence[int],
        finish_reason: FinishReason,
        stop_reason: int | str | None,
    ) -> CompletionDelta:
        self.finished = True
        text = "".join(parts)
        return CompletionDelta(self._index, text, tuple(token_ids), finish_reason, stop_reason)


class _Decoder(Protocol):
    def add(self, token_id: int) -> str:
        """Text that this token completes."""

    def flush(self) -> str:
        """What is still held back; half a character becomes U+FFFD."""


class _ByteDecoder:
    """Byte-level vocabularies: tokens are bytes, and UTF-8 is decoded incrementally."""

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._inside = False  # a character has begun

    def add(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        if not self._inside and (text := self._tokenizer.id_to_text(token_id)) is not None:
            return text
        text = self._utf8.decode(self._tokenizer.id_to_bytes(token_id))
        self._inside = bool(self._utf8.getstate()[0])
        return text

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowDecoder:
    """Other vocabularies: what the last tokens add to the text of those before them, since the
    text of a token may depend on its left neighbour (a leading space, bytes of a character)."""

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._ids: list[int] = []
        self._num_released = 0
        self._released = ""

    def add(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        self._ids.append(token_id)
        text = self._tokenizer.decode(self._ids, skip_special_tokens=False)
        pending = len(self._ids) - self._num_released
        if text.endswith("\ufffd") and pending < _MAX_PENDING_TOKENS:
            return ""
        added = text[len(self._released) :]
        self._ids = self._ids[self._num_released :]
        self._num_released = len(self._ids)
        self._released = self._tokenizer.decode(self._ids, skip_special_tokens=False)
        return added

    def flush(self) -> str:
        text = self._tokenizer.decode(self._ids, skip_special_tokens=False)
        return text[len(self._released) :]


class _StopStrings:
    """Passes text on up to the first stop string, or past it: the one complete first, and of those
    that end together the longest. Holds back only an end that one of them begins with."""

    def __init__(self, stop: tuple[str, ...], included: bool) -> None:
        self._stop, self._included = stop, included
        self._longest = max(map(len, stop), default=0)
        self._held = ""
        self.matched: str | None = None

    def add(self, text: str) -> str:
        if not self._stop:
            return text
        text = self._held + text
        found = [(at + len(s), at, s) for s in self._stop if (at := text.find(s)) >= 0]
        if found:
            end, at, self.matched = min(found)
            self._held = ""
            return text[: end if self._included else at]
        keep = self._partial(text)
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held

    def _partial(self, text: str) -> int:
        """Length of the longest end of text that a stop string begins with."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(s.startswith(text[-length:]) for s in self._stop):
                return length
        return 0
