"""Logprobs in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Sequence

from jaxserve.outputs import TokenLogprobs
from jaxserve.server.responses import ChatLogprob, ChatLogprobs, TextLogprobs, TopLogprob
from jaxserve.text.tokenizer import Tokenizer


def chat_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs] | None
) -> ChatLogprobs | None:
    """The form of a chat; null without entries."""
    if not entries:
        return None
    return ChatLogprobs([_chat_entry(tokenizer, entry) for entry in entries])


def _chat_entry(tokenizer: Tokenizer, entry: TokenLogprobs) -> ChatLogprob:
    own, *top = (
        TopLogprob(_text(tokenizer, token), logprob, list(_bytes(tokenizer, token)))
        for token, logprob in ((entry.token_id, entry.logprob), *entry.top)
    )
    return ChatLogprob(own.token, own.logprob, own.bytes, top)


def text_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs] | None, asked: int | None, offset: int
) -> TextLogprobs | None:
    """The form of a text completion; null without entries.

    Args:
        asked: how many of the likeliest to list beside the token itself; null doesn't report.
        offset: of the first token in the text, in characters.
    """
    if not entries or asked is None:
        return None
    tokens = [_text(tokenizer, entry.token_id) for entry in entries]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    top = [
        {_text(tokenizer, i): logprob for i, logprob in entry.top}
        | {_text(tokenizer, entry.token_id): entry.logprob}
        for entry in entries
    ]
    logprobs = [entry.logprob for entry in entries]
    return TextLogprobs(offsets, logprobs, tokens, top if asked else None)


def _text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.decode([token], skip_special_tokens=False)


def _bytes(tokenizer: Tokenizer, token: int) -> bytes:
    if tokenizer.is_byte_level:
        return tokenizer.id_to_bytes(token)
    return _text(tokenizer, token).encode()
