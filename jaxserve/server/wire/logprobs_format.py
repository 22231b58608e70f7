"""Logprobs in OpenAI's two forms and vLLM's one for prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxserve.outputs import PromptLogprobs, TokenLogprobs
from jaxserve.server.wire.answers import (
    ChatLogprob,
    ChatLogprobs,
    PromptLogprob,
    PromptLogprobsBody,
    TextLogprobs,
    TopLogprob,
)
from jaxserve.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LogprobsWriter:
    """Writes the logprobs of one request.

    Args:
        as_ids: write tokens as "token_id:17" instead of their text.
    """

    tokenizer: Tokenizer
    as_ids: bool = False

    def chat(self, entries: Sequence[TokenLogprobs] | None) -> ChatLogprobs | None:
        """The form of a chat; null without entries."""
        if not entries:
            return None
        return ChatLogprobs([self._chat_entry(entry) for entry in entries])

    def _chat_entry(self, entry: TokenLogprobs) -> ChatLogprob:
        own, *top = (
            TopLogprob(self._label(token), logprob, list(self._bytes(token)))
            for token, logprob in ((entry.token_id, entry.logprob), *entry.top)
        )
        return ChatLogprob(own.token, own.logprob, own.bytes, top)

    def text(
        self, entries: Sequence[TokenLogprobs] | None, asked: int | None, offset: int
    ) -> TextLogprobs | None:
        """The form of a text completion; null without entries.

        Args:
            asked: how many of the likeliest to list beside the token itself; null doesn't report.
            offset: of the first token in the text, in characters.
        """
        if not entries or asked is None:
            return None
        logprobs = TextLogprobs([], [], [], [] if asked else None)
        for entry in entries:
            offset = self._append(logprobs, entry, asked, offset)
        return logprobs

    def length(self, entries: Sequence[TokenLogprobs]) -> int:
        """Characters of tokens, each by itself."""
        return sum(len(self._text(entry.token_id)) for entry in entries)

    def prompt_text(
        self, prompt: Sequence[int], entries: PromptLogprobs, asked: int
    ) -> tuple[TextLogprobs, int]:
        """The form of a text completion for its prompt, and the characters of its tokens."""
        first = self._text(prompt[0])
        logprobs = TextLogprobs([0], [None], [self._label(prompt[0])], [None] if asked else None)
        offset = len(first)
        for entry in entries:
            if entry is not None:
                offset = self._append(logprobs, entry, asked, offset)
        return logprobs, offset

    def _append(self, logprobs: TextLogprobs, entry: TokenLogprobs, asked: int, offset: int) -> int:
        """Adds a token, and gives the offset of the next."""
        label = self._label(entry.token_id)
        logprobs.text_offset.append(offset)
        logprobs.token_logprobs.append(entry.logprob)
        logprobs.tokens.append(label)
        if logprobs.top_logprobs is not None:
            top = {self._label(i): logprob for i, logprob in entry.top[:asked]}
            logprobs.top_logprobs.append(top | {label: entry.logprob})
        return offset + len(self._text(entry.token_id))

    def prompt(self, entries: PromptLogprobs) -> PromptLogprobsBody:
        """vLLM's form, for a chat and a text completion."""
        return [None if entry is None else self._prompt_entry(entry) for entry in entries]

    def _prompt_entry(self, entry: TokenLogprobs) -> dict[str, PromptLogprob]:
        top = {
            str(token): PromptLogprob(logprob, rank, self._text(token))
            for rank, (token, logprob) in enumerate(entry.top, 1)
        }
        own = PromptLogprob(entry.logprob, entry.rank, self._text(entry.token_id))
        return {str(entry.token_id): own} | top | {str(entry.token_id): own}

    def _label(self, token: int) -> str:
        return f"token_id:{token}" if self.as_ids else self._text(token)

    def _text(self, token: int) -> str:
        return self.tokenizer.decode([token], skip_special_tokens=False)

    def _bytes(self, token: int) -> bytes:
        if self.tokenizer.is_byte_level:
            return self.tokenizer.id_to_bytes(token)
        return self._text(token).encode()
