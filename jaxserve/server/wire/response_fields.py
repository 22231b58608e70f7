"""Fields that responses of several endpoints share: their ids, their header, token counts."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import msgspec

from jaxserve.outputs import CompletionDelta


def new_id(prefix: str) -> str:
    """An id in OpenAI's form, such as chatcmpl-..."""
    return f"{prefix}-{uuid.uuid4().hex}"


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


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


@dataclass(slots=True)
class TokenCount:
    """Tokens of a request so far: of its prompts, of its outputs, and of its prompts in the prefix
    cache."""

    prompt: int
    completion: int = 0
    cached: int = 0

    def add(self, delta: CompletionDelta) -> None:
        self.completion += len(delta.token_ids)
        self.cached += delta.cached_tokens or 0

    def usage(self) -> Usage:
        return Usage(
            self.prompt,
            self.completion,
            self.prompt + self.completion,
            PromptTokensDetails(self.cached),
        )
