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
    """Args: accepted_prediction_tokens, rejected_prediction_tokens: guesses that were verified, of
    the request's prediction or of any other source (--speculation)."""

    reasoning_tokens: int
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(msgspec.Struct):
    """Args: completion_tokens_details: of chat completions, and where guesses were verified."""

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
        accepted, rejected: of the guesses that were verified.
    """

    prompt: int
    completion: int = 0
    cached: int = 0
    reasoning: int | None = None
    accepted: int = 0
    rejected: int = 0

    def add(self, delta: CompletionDelta) -> None:
        self.completion += len(delta.token_ids)
        self.cached += delta.cached_tokens or 0
        self.accepted += delta.accepted_guesses
        self.rejected += delta.rejected_guesses

    def usage(self) -> Usage:
        usage = Usage(
            self.prompt,
            self.completion,
            self.prompt + self.completion,
            PromptTokensDetails(self.cached),
        )
        if self.reasoning is not None or self.accepted or self.rejected:
            usage.completion_tokens_details = CompletionTokensDetails(
                min(self.reasoning or 0, self.completion), self.accepted, self.rejected
            )
        return usage
