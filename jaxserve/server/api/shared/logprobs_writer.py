"""Converts the engine's logprobs to OpenAI's two forms, and to vLLM's for prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxserve.outputs import PromptLogprobs, TokenLogprobs
from jaxserve.server.wire.logprobs import (
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
    """Converts the logprobs of one request.

    Args:
        as_ids: write tokens as "token_id:17" instead of their text.
    """

    tokenizer: Tokenizer
    as_ids: bool = False

    def chat(self, entries: Sequence[TokenLogprobs] | None) -> ChatLogprobs | None:
        """The form of chat completions; None without entries."""
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
        self, entries: Sequence[TokenLogprobs] | None, num_top: int | None, offset: int
    ) -> TextLogprobs | None:
        """The form of text completions; None without entries.

        Args:
            num_top: most likely tokens to list besides the token itself; None if the request asks
                for no logprobs.
            offset: of the first token in the text, in characters.
        """
        if not entries or num_top is None:
            return None
        logprobs = TextLogprobs([], [], [], [] if num_top else None)
        for entry in entries:
            offset = self._append(logprobs, entry, num_top, offset)
        return logprobs

    def length(self, entries: Sequence[TokenLogprobs]) -> int:
        """Characters of tokens, each decoded by itself."""
        return sum(len(self._text(entry.token_id)) for entry in entries)

    def prompt_text(
        self, prompt: Sequence[int], entries: PromptLogprobs, num_top: int
    ) -> tuple[TextLogprobs, int]:
        """The form of text completions for the prompt, and the characters of its tokens."""
        first = self._text(prompt[0])
        logprobs = TextLogprobs([0], [None], [self._label(prompt[0])], [None] if num_top else None)
        offset = len(first)
        for entry in entries:
            if entry is not None:
                offset = self._append(logprobs, entry, num_top, offset)
        return logprobs, offset

    def _append(
        self, logprobs: TextLogprobs, entry: TokenLogprobs, num_top: int, offset: int
    ) -> int:
        """Adds a token; returns the offset of the next."""
        label = self._label(entry.token_id)
        logprobs.text_offset.append(offset)
        logprobs.token_logprobs.append(entry.logprob)
        logprobs.tokens.append(label)
        if logprobs.top_logprobs is not None:
            top = {self._label(i): logprob for i, logprob in entry.top[:num_top]}
            logprobs.top_logprobs.append(top | {label: entry.logprob})
        return offset + len(self._text(entry.token_id))

    def prompt(self, entries: PromptLogprobs) -> PromptLogprobsBody:
        """vLLM's form, for chat and text completions."""
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
