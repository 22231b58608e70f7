"""The response of POST /v1/completions: OpenAI's fields, and vLLM's extra ones."""

from __future__ import annotations

import msgspec

from jaxserve.outputs import FinishReason
from jaxserve.server.wire.logprobs import PromptLogprobsBody, TextLogprobs
from jaxserve.server.wire.response_fields import ResponseHeader, Usage


class CompletionChoice(msgspec.Struct):
    """A choice of a text completion, or what a chunk adds to it."""

    index: int
    text: str
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: TextLogprobs | None = None
    prompt_logprobs: PromptLogprobsBody | msgspec.UnsetType = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class Completion(ResponseHeader, kw_only=True):
    """A text completion, or a chunk of a streamed one: OpenAI gives both the same fields."""

    choices: list[CompletionChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
