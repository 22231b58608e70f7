"""Detokenizer: the text of one choice from its ids as they arrive, cut at stop strings."""

from __future__ import annotations

from collections.abc import Sequence

from jaxserve.outputs import CompletionDelta, FinishReason
from jaxserve.sampling.params import SamplingParams
from jaxserve.text.stop_strings import StopStrings
from jaxserve.text.tokenizer import Tokenizer


class Detokenizer:
    """The text of one choice.

    Args:
        params: stop strings, and whether to show special tokens.
        prompt: its ids; the text goes on from theirs.
        index: the choice's index in the request; every delta has it.
        echoes_prompt: as in incremental_decoder().
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        prompt: Sequence[int] = (),
        index: int = 0,
        echoes_prompt: bool = False,
    ) -> None:
        self._decoder = tokenizer.decoder(prompt, params.skip_special_tokens, echoes_prompt)
        self._shows_stop = params.include_stop_str_in_output
        self._stop = StopStrings(params.stop, self._shows_stop) if params.stop else None
        # Tokens that aren't shown, but may be part of a stop string.
        self._searched: dict[int, str] = {}
        if params.stop and params.skip_special_tokens:
            self._searched = tokenizer.special_tokens_in(params.stop)
        self._min_tokens, self._num_tokens = params.min_tokens, 0
        self._index = index
        self.finished = False

    def add(
        self,
        token_ids: Sequence[int],
        finish_reason: FinishReason | None = None,
        stop_reason: int | str | None = None,
    ) -> CompletionDelta:
        """Takes the next ids; returns the text that they complete.

        Bytes of an unfinished character, and text that may be the beginning of a stop string, are
        held back until more ids or the end decide. At a stop string, the text ends before it, the
        ids end with the token that completed it, and finish_reason becomes "stop" whatever the
        argument was. A stop string that is complete with fewer than min_tokens tokens is passed
        over. A token that ended the output (finish_reason "stop") isn't shown. The params can
        include both in the text. After the end, all deltas are empty.

        Args:
            token_ids: at least one, or none if there is a finish_reason.
            finish_reason, stop_reason: the engine's; None until the end.
        """
        if self.finished:
            return CompletionDelta(self._index, "")
        if finish_reason is None and self._stop is None:  # the usual case
            text = "".join(map(self._decoder.add, token_ids))
            return CompletionDelta(self._index, text, tuple(token_ids))
        shown = len(token_ids) - (finish_reason == "stop" and not self._shows_stop)
        parts = []
        for count, token_id in enumerate(token_ids[: max(shown, 0)], start=1):
            self._num_tokens += 1
            parts.append(self._add_one(token_id))
            if self._stop is not None and self._stop.matched is not None:
                return self._end(parts, token_ids[:count], "stop", self._stop.matched)
        if finish_reason is None:
            return CompletionDelta(self._index, "".join(parts), tuple(token_ids))
        parts.append(self._cut(self._decoder.flush()))
        if self._stop is not None:
            if self._stop.matched is not None:
                return self._end(parts, token_ids, "stop", self._stop.matched)
            parts.append(self._stop.flush())
        return self._end(parts, token_ids, finish_reason, stop_reason)

    def _add_one(self, token_id: int) -> str:
        text = self._decoder.add(token_id)
        if (hidden := self._searched.get(token_id)) is None:
            return self._cut(text)
        return self._cut(text) + self._cut(hidden, is_shown=False)

    def _cut(self, text: str, is_shown: bool = True) -> str:
        if self._stop is None or not text:
            return text
        may_match = self._num_tokens >= self._min_tokens
        return self._stop.add(text, is_shown=is_shown, may_match=may_match)

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
