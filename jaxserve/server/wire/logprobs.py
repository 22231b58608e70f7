"""Logprobs in responses: OpenAI's two forms, and vLLM's for prompts."""

from __future__ import annotations

import msgspec


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatLogprob]
    refusal: None = None


class TextLogprobs(msgspec.Struct):
    """Parallel lists with one entry for each token; null for a prompt's first token, which has no
    logprob."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None] | None


class PromptLogprob(msgspec.Struct):
    """vLLM's form."""

    logprob: float
    rank: int
    decoded_token: str


# By token id: the prompt's own token and the most likely ones; null for the first token.
PromptLogprobsBody = list[dict[str, PromptLogprob] | None]
