"""Detokenizer: turns the ids of one choice into text as they arrive, and cuts it at stop strings.

The work for a token doesn't depend on the length of the output: a byte-level vocabulary is decoded
byte by byte, any other by a short window of the last tokens.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from jaxserve.outputs import CompletionDelta, FinishReason
from jaxserve.sampling.params import SamplingParams
from jaxserve.text.tokenizer import Tokenizer

# A character has at most 4 bytes, and so 4 tokens. If the text of as many still ends in U+FFFD, the
# bytes are invalid, not incomplete.
_MAX_PENDING_TOKENS = 4


class Detokenizer:
    """The text of one choice.

    Args:
        params: stop strings, and whether special tokens are part of the text.
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
        """Adds the next ids, and returns the text that is complete with them.

        Bytes of an incomplete character are held back until it is complete, and text that may be
        the beginning of a stop string until it isn't; at the end of the output, both are returned.
        When a stop string appears, the text ends before it and the ids with the token that
        completed it, and finish_reason becomes "stop", whatever the argument. A token that ended
        the output (finish_reason "stop") isn't part of the text. With include_stop_str_in_output,
        both are. After the end, deltas are empty.

        Args:
            token_ids: one or more, or none with a finish_reason.
            finish_reason, stop_reason: as the engine found them; None while the output goes on.
        """
        if self.finished:
            return CompletionDelta(self._index, "")
        if finish_reason is None and not self._has_stops:  # the usual case
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
        """The text that this token completes."""

    def flush(self) -> str:
        """The text that is still held back; an incomplete character becomes U+FFFD."""


class _ByteDecoder:
    """Byte-level vocabularies: tokens are bytes, and UTF-8 is decoded incrementally."""

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._inside = False  # after the first byte of a character that isn't complete

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
    """Other vocabularies: decodes the last tokens with and without the new one, since the text of a
    token may depend on the one before it (a leading space, bytes of a character)."""

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
    """Cuts text before the first stop string, or after it if it is to be included.

    The first is the one that is complete first, and of those that end together the longest. Only
    a suffix of the text that is a prefix of a stop string is held back.
    """

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
        keep = self._held_length(text)
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held

    def _held_length(self, text: str) -> int:
        """Length of the longest suffix of text that is a prefix of a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(s.startswith(text[-length:]) for s in self._stop):
                return length
        return 0
