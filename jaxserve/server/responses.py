"""Answer bodies, field for field as OpenAI's; `stop_reason` is vLLM's extra."""

from __future__ import annotations

import uuid

import msgspec

from jaxserve.outputs import FinishReason


def new_id(prefix: str) -> str:
    """An id of OpenAI's form, as chatcmpl-..."""
    return f"{prefix}-{uuid.uuid4().hex}"


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, prompt_tokens: int, completion_tokens: int) -> Usage:
        return cls(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens)


class Header(msgspec.Struct, kw_only=True):
    """What an answer, or each chunk of a streamed one, begins with."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


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
    """Parallel lists, one entry a token."""

    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]] | None


class AnswerMessage(msgspec.Struct):
    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct):
    index: int
    message: AnswerMessage
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    logprobs: ChatLogprobs | None = None


class ChatCompletion(Header, kw_only=True):
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to the message: only what is set is sent."""

    role: str | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: ChatLogprobs | None = None


class ChatChunk(Header, kw_only=True):
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class TextChoice(msgspec.Struct):
    """A choice of a text completion, whole or streamed."""

    index: int
    text: str
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: TextLogprobs | None = None


class TextCompletion(Header, kw_only=True):
    """A text completion, whole or a chunk of it; OpenAI gives both one form."""

    choices: list[TextChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class Model(msgspec.Struct, kw_only=True):
    id: str
    created: int
    max_model_len: int
    root: str
    object: str = "model"
    owned_by: str = "jaxserve"


class ModelList(msgspec.Struct, kw_only=True):
    data: list[Model]
    object: str = "list"
