"""Converts the engine's logprobs to OpenAI's two forms, and to vLLM's for prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


class TokenNames:
    """Names of tokens at one place of a text after another.

    A token's name is the text that it adds there, so that the names of consecutive tokens together
    are the text. The name of a special token is its own text, whether or not the text shows it; a
    token that isn't whole characters has its bytes, as "bytes:\\xe6\\x9d".

    Args:
        prompt: the tokens before the first place.
        skip_special_tokens: whether the text is without special tokens.
        echoes_prompt: as in incremental_decoder().
        as_ids: names are "token_id:17" instead.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        skip_special_tokens: bool,
        echoes_prompt: bool = False,
        as_ids: bool = False,
    ) -> None:
        self._decoder = tokenizer.decoder(prompt, skip_special_tokens, echoes_prompt)
        self._as_ids = as_ids

    def names(self, token_ids: Iterable[int]) -> dict[int, str]:
        """The names of different tokens at this place, by id. No two are equal: what would be a
        second token of the same name is "token_id:17"."""
        names: dict[int, str] = {}
        taken: set[str] = set()
        for token_id in token_ids:
            if token_id not in names:
                name = self._name(token_id)
                if name in taken:
                    name = f"token_id:{token_id}"
                names[token_id] = name
                taken.add(name)
        return names

    def bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds to the text at this place."""
        return self._decoder.next_bytes(token_id)

    def go_on(self, token_id: int) -> int:
        """Goes on to the place after this token; returns the characters that it completes."""
        return len(self._decoder.add(token_id))

    def _name(self, token_id: int) -> str:
        if self._as_ids:
            return f"token_id:{token_id}"
        data = self.bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class ChoiceLogprobs:
    """Converts the logprobs of one choice, whose tokens come in order.

    Args:
        names: at the choice's first token.
        offset: characters before the choice's text.
    """

    def __init__(self, names: TokenNames, offset: int = 0) -> None:
        self._names, self._offset = names, offset

    def chat(self, entries: Sequence[TokenLogprobs] | None) -> ChatLogprobs | None:
        """The form of chat completions; None without entries."""
        if not entries:
            return None
        return ChatLogprobs([self._chat_entry(entry) for entry in entries])

    def _chat_entry(self, entry: TokenLogprobs) -> ChatLogprob:
        names = self._names.names([entry.token_id, *(token for token, _ in entry.top)])
        own, *top = (
            TopLogprob(names[token], logprob, list(self._names.bytes(token)))
            for token, logprob in ((entry.token_id, entry.logprob), *entry.top)
        )
        self._names.go_on(entry.token_id)
        return ChatLogprob(own.token, own.logprob, own.bytes, top)

    def text(
        self, entries: Sequence[TokenLogprobs] | None, num_top: int | None
    ) -> TextLogprobs | None:
        """The form of text completions; None without entries.

        A token's offset is the number of characters before its text, in all text of the choice. A
        stop string changes no offset: those of tokens that it cuts off may exceed the text.

        Args:
            num_top: most likely tokens to list besides the token itself; None if the request asks
                for no logprobs.
        """
        if not entries or num_top is None:
            return None
        logprobs = TextLogprobs([], [], [], [] if num_top else None)
        for entry in entries:
            _append(logprobs, entry, num_top, self._names, self._offset)
            self._offset += self._names.go_on(entry.token_id)
        return logprobs


@dataclass(frozen=True, slots=True)
class LogprobsWriter:
    """Converts the logprobs of one request.

    Args:
        skip_special_tokens: whether its text is without special tokens.
        as_ids: write tokens as "token_id:17" instead of their text.
    """

    tokenizer: Tokenizer
    skip_special_tokens: bool = True
    as_ids: bool = False

    def choice(
        self, prompt: Sequence[int], offset: int = 0, echoes_prompt: bool = False
    ) -> ChoiceLogprobs:
        """For one choice of a prompt.

        Args:
            offset: characters before the choice's text.
            echoes_prompt: as in incremental_decoder().
        """
        return ChoiceLogprobs(self._names(prompt, echoes_prompt), offset)

    def prompt_text(
        self, prompt: Sequence[int], entries: PromptLogprobs, num_top: int, text: str
    ) -> TextLogprobs:
        """The form of text completions, for a prompt that is echoed.

        Args:
            text: as it is sent. It may have special tokens that the output's text would skip.
        """
        logprobs = TextLogprobs([], [], [], [] if num_top else None)
        names, offsets = self._names(), _offsets(self.tokenizer, prompt, text)
        for token, entry, offset in zip(prompt, entries, offsets, strict=True):
            if entry is not None:
                _append(logprobs, entry, num_top, names, offset)
            else:  # the first token has no logprob
                logprobs.text_offset.append(offset)
                logprobs.token_logprobs.append(None)
                logprobs.tokens.append(names.names([token])[token])
                if logprobs.top_logprobs is not None:
                    logprobs.top_logprobs.append(None)
            names.go_on(token)
        return logprobs

    def prompt(self, prompt: Sequence[int], entries: PromptLogprobs) -> PromptLogprobsBody:
        """vLLM's form, for chat and text completions."""
        names = self._names()
        written: PromptLogprobsBody = []
        for token, entry in zip(prompt, entries, strict=True):
            written.append(None if entry is None else _prompt_entry(entry, names))
            names.go_on(token)
        return written

    def _names(self, prompt: Sequence[int] = (), echoes_prompt: bool = False) -> TokenNames:
        return TokenNames(
            self.tokenizer, prompt, self.skip_special_tokens, echoes_prompt, self.as_ids
        )


def _append(
    logprobs: TextLogprobs, entry: TokenLogprobs, num_top: int, names: TokenNames, offset: int
) -> None:
    by_id = names.names([entry.token_id, *(token for token, _ in entry.top[:num_top])])
    logprobs.text_offset.append(offset)
    logprobs.token_logprobs.append(entry.logprob)
    logprobs.tokens.append(by_id[entry.token_id])
    if logprobs.top_logprobs is not None:
        top = {by_id[token]: logprob for token, logprob in entry.top[:num_top]}
        logprobs.top_logprobs.append(top | {by_id[entry.token_id]: entry.logprob})


def _prompt_entry(entry: TokenLogprobs, names: TokenNames) -> dict[str, PromptLogprob]:
    by_id = names.names([entry.token_id, *(token for token, _ in entry.top)])
    top = {
        str(token): PromptLogprob(logprob, rank, by_id[token])
        for rank, (token, logprob) in enumerate(entry.top, 1)
    }
    own = PromptLogprob(entry.logprob, entry.rank, by_id[entry.token_id])
    return {str(entry.token_id): own} | top | {str(entry.token_id): own}


def _offsets(tokenizer: Tokenizer, prompt: Sequence[int], text: str) -> list[int]:
    """Where the tokens of a prompt begin in its text as it is sent. A special token that isn't
    written there takes no characters."""
    decoder = tokenizer.decoder((), skip_special_tokens=False)
    offsets, at = [], 0
    for token in prompt:
        offsets.append(at)
        added = decoder.add(token)
        if text.startswith(added, at):
            at += len(added)
        elif token in tokenizer.special_ids:
            pass
        elif added[:1] == " " and text.startswith(added[1:], at):  # the text's first token
            at += len(added) - 1
        else:  # the vocabulary changes text, for example its case
            at = min(at + len(added), len(text))
    return offsets
