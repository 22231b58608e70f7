"""Answer bodies, field for field as OpenAI's; `stop_reason` is vLLM's extra."""

from __future__ import annotations

import uuid

import msgspec

from jaxserve.outputs import FinishReason


def new_id(prefix: str) -> str:
    """An id of OpenAI's form, as chatcmpl-..."""
    return f"{prefix}-{uuid.uuid4().hex}"


class PromptTokensDetails(msgspec.Struct):
    """Args: cached_tokens: those whose work the prefix cache saved."""

    cached_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails

    @classmethod
    def of(cls, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Usage:
        return cls(
            prompt_tokens,
            completion_tokens,
            prompt_tokens + completion_tokens,
            PromptTokensDetails(cached_tokens),
        )


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
    """Parallel lists, one entry a token; null for a prompt's first token, which has none."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None] | None


class PromptLogprob(msgspec.Struct):
    """vLLM's form."""

    logprob: float
    rank: int
    decoded_token: str


# By token id: the prompt's own token, and the likeliest; null for the first.
PromptLogprobsBody = list[dict[str, PromptLogprob] | None]


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class AnswerCall(msgspec.Struct):
    id: str
    function: CalledFunction
    type: str = "function"


class AnswerMessage(msgspec.Struct, kw_only=True):
    """Args: reasoning, reasoning_content: vLLM's two names of one text; absent without any."""

    role: str = "assistant"
    content: str | None
    refusal: None = None
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[AnswerCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: AnswerMessage
    finish_reason: str
    stop_reason: int | str | None = None
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(Header, kw_only=True):
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobsBody | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class FunctionDelta(msgspec.Struct, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class CallDelta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to call number `index`; the first has the id, the type and the name."""

    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None


class ChatDelta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to the message: only what is set is sent."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(Header, kw_only=True):
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class TextChoice(msgspec.Struct):
    """A choice of a text completion, whole or streamed."""

    index: int
    text: str
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: TextLogprobs | None = None
    prompt_logprobs: PromptLogprobsBody | msgspec.UnsetType = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


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
