"""Fields that responses of several endpoints share: their ids, their header, token counts."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import msgspec

from jaxserve.outputs import CompletionDelta


def new_id(prefix: str) -> str:
    """An id in OpenAI's form. Args: prefix: with its separator, such as "chatcmpl-" or "msg_"."""
    return f"{prefix}{uuid.uuid4().hex}"


class ResponseHeader(msgspec.Struct, kw_only=True):
    """What a completion, or each chunk of a streamed one, begins with."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


class PromptTokensDetails(msgspec.Struct):
    """Args: cached_tokens: prompt tokens that were found in the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class Usage(msgspec.Struct):
    """Args: completion_tokens_details: only of chat completions."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET


@dataclass(slots=True)
class TokenCount:
    """Tokens of a request so far.

    Args:
        prompt, completion: of its prompts and of its outputs.
        cached: of its prompts, those in the prefix cache.
        reasoning: of its outputs, those of reasoning; None before the end, and if outputs aren't
            parsed for it.
    """

    prompt: int
    completion: int = 0
    cached: int = 0
    reasoning: int | None = None

    def add(self, delta: CompletionDelta) -> None:
        self.completion += len(delta.token_ids)
        self.cached += delta.cached_tokens or 0

    def usage(self) -> Usage:
        usage = Usage(
            self.prompt,
            self.completion,
            self.prompt + self.completion,
            PromptTokensDetails(self.cached),
        )
        if self.reasoning is not None:
            reasoning = min(self.reasoning, self.completion)
            usage.completion_tokens_details = CompletionTokensDetails(reasoning)
        return usage
