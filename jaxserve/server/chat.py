"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from jaxserve.errors import InvalidRequestError
from jaxserve.outputs import CompletionDelta
from jaxserve.sampling.params import SamplingParams
from jaxserve.server import generation
from jaxserve.server.bodies import parse, read_json
from jaxserve.server.context import SERVING, Serving
from jaxserve.server.logprobs import chat_logprobs
from jaxserve.server.requests import (
    CHAT_UNSUPPORTED,
    MESSAGE_UNSUPPORTED,
    ChatCompletionRequest,
    ChatMessage,
)
from jaxserve.server.responses import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    Usage,
)

if TYPE_CHECKING:
    from jaxserve.engine.client import EngineClient

# Templates know no developer, OpenAI's newer name of the system role.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TEMPLATE_ARGUMENTS = frozenset({"messages", "add_generation_prompt", "tools", "self"})


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    serving = request.app[SERVING]
    body = parse(await read_json(request), ChatCompletionRequest, CHAT_UNSUPPORTED)
    serving.check_model(body.model)
    body.check_stream_options()
    with body.errors_in_its_words():
        params = serving.check_limits(body.to_sampling_params())
        prompt = await generation.off_loop(request, render, serving.client, body, params)
    deltas = generation.generate(serving.client, [prompt], params)
    if body.stream:
        chunks = _Chunks(serving, body.include_usage)
        return await generation.stream(
            request,
            deltas,
            chunks.of_delta,
            chunks.of_usage if body.include_usage else None,
            len(prompt),
        )
    outputs = await generation.gather(deltas, params.n)
    tokenizer = serving.client.tokenizer
    answer = ChatCompletion(
        **serving.header("chatcmpl"),
        object="chat.completion",
        choices=[
            ChatChoice(
                o.index,
                AnswerMessage(o.text),
                o.finish_reason,
                o.stop_reason,
                chat_logprobs(tokenizer, o.logprobs),
            )
            for o in outputs
        ],
        usage=generation.count_usage([prompt], outputs),
    )
    return generation.json_response(answer)


def render(client: EngineClient, body: ChatCompletionRequest, params: SamplingParams) -> list[int]:
    """The prompt's token ids, by the model's chat template.

    Raises:
        InvalidRequestError: a message is malformed or unsupported, the template refuses them, or
            the prompt is too long.
    """
    messages = [template_message(m, f"messages[{i}]") for i, m in enumerate(body.messages)]
    if not messages:
        raise InvalidRequestError("messages must not be empty", "messages")
    extra = body.chat_template_kwargs or {}
    if taken := TEMPLATE_ARGUMENTS & extra.keys():
        raise InvalidRequestError(
            f"chat_template_kwargs may not set {', '.join(sorted(taken))}", "chat_template_kwargs"
        )
    text = client.tokenizer.apply_chat_template(
        messages, add_generation_prompt=body.add_generation_prompt is not False, **extra
    )
    # The template writes the special tokens itself.
    ids = client.tokenizer.encode(text, add_special_tokens=bool(body.add_special_tokens))
    return client.prepare(ids, params)


def template_message(message: dict[str, Any], where: str) -> dict[str, Any]:
    """A message as chat templates expect it: its content one string."""
    if message.get("role") in ("tool", "function"):
        raise InvalidRequestError(
            f"{where}.role: results of tools aren't supported by this server", f"{where}.role"
        )
    parsed = parse(message, ChatMessage, MESSAGE_UNSUPPORTED, f"{where}.")
    if parsed.role not in ROLES:
        raise InvalidRequestError(
            f"{where}.role must be one of {', '.join(ROLES)}; it was {parsed.role!r}",
            f"{where}.role",
        )
    if parsed.content is None:
        raise InvalidRequestError(f"{where}.content must not be null", f"{where}.content")
    name = {} if parsed.name is None else {"name": parsed.name}
    content = join_parts(parsed.content, f"{where}.content")
    return {"role": ROLES[parsed.role], "content": content, **name}


def join_parts(content: str | list[dict[str, Any]], where: str) -> str:
    """The text of a message's content; several parts are joined by line breaks, as vLLM does."""
    if isinstance(content, str):
        return content
    if not content:
        raise InvalidRequestError(f"{where} must not be empty", where)
    return "\n".join(_part_text(part, f"{where}[{i}]") for i, part in enumerate(content))


class _TextPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    text: str


def _part_text(part: dict[str, Any], where: str) -> str:
    kind = part.get("type")
    if isinstance(kind, str) and kind != "text":
        raise InvalidRequestError(
            f"{where}: content of type {kind!r} isn't supported; send text", where
        )
    return parse(part, _TextPart, {}, f"{where}.").text


class _Chunks:
    """Chunks of one streamed chat: per choice the role first, then text, one finish reason last."""

    def __init__(self, serving: Serving, include_usage: bool) -> None:
        header = serving.header("chatcmpl")
        self._tokenizer = serving.client.tokenizer
        self._chunk = partial(
            ChatChunk,
            **header,
            object="chat.completion.chunk",
            usage=None if include_usage else msgspec.UNSET,
        )
        self._begun: set[int] = set()

    def of_delta(self, delta: CompletionDelta) -> Iterator[ChatChunk]:
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            yield self._choice(
                ChatChunkChoice(delta.index, ChatDelta(role="assistant", content=""))
            )
        logprobs = chat_logprobs(self._tokenizer, delta.logprobs)
        if delta.text or logprobs:
            content = ChatDelta(content=delta.text)
            yield self._choice(ChatChunkChoice(delta.index, content, logprobs=logprobs))
        if delta.finish_reason:
            yield self._choice(
                ChatChunkChoice(delta.index, ChatDelta(), delta.finish_reason, delta.stop_reason)
            )

    def _choice(self, choice: ChatChunkChoice) -> ChatChunk:
        return self._chunk(choices=[choice])

    def of_usage(self, usage: Usage) -> ChatChunk:
        return self._chunk(choices=[], usage=usage)
