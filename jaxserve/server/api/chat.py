"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec
from aiohttp import web

from jaxserve.outputs import CompletionDelta
from jaxserve.server.api import generation
from jaxserve.server.api.chat_prompts import ChatPrompt, begin, render
from jaxserve.server.api.generation import TokenCount
from jaxserve.server.context import Serving
from jaxserve.server.parsers import Piece
from jaxserve.server.parsers.answer_parser import AnswerParser
from jaxserve.server.wire.answers import (
    AnswerCall,
    AnswerMessage,
    CallDelta,
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    FunctionDelta,
    Usage,
)
from jaxserve.server.wire.logprobs_format import LogprobsWriter
from jaxserve.server.wire.requests import CHAT_UNSUPPORTED, ChatCompletionRequest
from jaxserve.server.wire.sse import TextEvent, event


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    chat = await begin(request, ChatCompletionRequest, CHAT_UNSUPPORTED, render)
    serving, body, prompt, count = chat.serving, chat.body, chat.prompt, chat.count
    writer = _Writer(serving, body, prompt, count)
    if body.stream:
        usage_event = writer.usage_event if body.include_usage else None
        last = generation.closing_events(usage_event, count)
        return await generation.stream(request, chat.batches, writer.events, last, count)
    outputs = await generation.gather(chat.batches, chat.params.n, count)
    answer = ChatCompletion(
        **serving.header("chatcmpl"),
        object="chat.completion",
        choices=list(map(writer.choice, outputs)),
        usage=count.usage(),
    )
    if body.return_token_ids:
        answer.prompt_token_ids = prompt.ids
    if outputs[0].prompt_logprobs is not None:
        answer.prompt_logprobs = writer.logprobs.prompt(outputs[0].prompt_logprobs)
    return generation.json_response(answer)


class _Writer:
    """Writes the choices of one chat, whole or as events.

    Events of a choice: the role first, then what its text adds, one finish reason last.
    """

    def __init__(
        self,
        serving: Serving,
        body: ChatCompletionRequest,
        prompt: ChatPrompt,
        count: TokenCount,
    ) -> None:
        self.logprobs = LogprobsWriter(
            serving.client.tokenizer, bool(body.return_tokens_as_token_ids)
        )
        self._prompt_ids = prompt.ids if body.return_token_ids else None
        self._parts = prompt.parts
        self._new_call_id = serving.new_call_id
        tells_more = body.return_token_ids or body.logprobs or body.continuous_usage
        self._is_plain = not (prompt.parts or tells_more)
        self._usage = generation.chunk_usage(body, count)
        self._chunk = partial(
            ChatChunk, **serving.header("chatcmpl"), object="chat.completion.chunk"
        )
        self._parsers: dict[int, AnswerParser] = {}
        self._plain: dict[int, TextEvent] = {}

    def choice(self, output: CompletionDelta) -> ChatChoice:
        assert output.finish_reason is not None
        answer = self._parts.start()
        answer.feed(output.text, last=True)
        # Null where there are only calls or thoughts, as OpenAI has it.
        message = AnswerMessage(
            content=answer.content or ("" if not (answer.calls or answer.thought) else None)
        )
        if answer.thought and self._parts.show_reasoning:
            message.reasoning = message.reasoning_content = answer.thought
        if answer.calls:
            message.tool_calls = [
                AnswerCall(self._new_call_id(), CalledFunction(call.name, call.arguments))
                for call in answer.calls
            ]
        return ChatChoice(
            output.index,
            message,
            answer.finish_reason(output.finish_reason),
            output.stop_reason,
            self.logprobs.chat(output.logprobs),
            self._own_ids(output),
        )

    def events(self, delta: CompletionDelta) -> list[bytes]:
        plain = self._plain.get(delta.index)
        if self._is_plain and plain is not None and delta.finish_reason is None:
            return [plain(delta.text)] if delta.text else []
        return list(self._all_events(delta))

    def _all_events(self, delta: CompletionDelta) -> Iterator[bytes]:
        parser = self._parsers.get(delta.index)
        if parser is None:
            parser = self._parsers[delta.index] = self._parts.start()
            yield self._first_event(delta.index)
        if not self._is_plain:
            yield from self._parsed_events(delta, parser)
        elif delta.text:
            yield self._plain[delta.index](delta.text)
        if delta.finish_reason:
            reason = parser.finish_reason(delta.finish_reason)
            yield self._event(ChatChunkChoice(delta.index, ChatDelta(), reason, delta.stop_reason))

    def usage_event(self, usage: Usage) -> bytes:
        return event(self._chunk(choices=[], usage=usage))

    def _first_event(self, index: int) -> bytes:
        choice = ChatChunkChoice(index, ChatDelta(content=""))
        chunk = self._chunk(choices=[choice], usage=self._usage())
        self._plain[index] = TextEvent(chunk, "content")
        choice.delta.role = "assistant"
        if self._prompt_ids is not None:
            chunk.prompt_token_ids = self._prompt_ids
        return event(chunk)

    def _parsed_events(self, delta: CompletionDelta, parser: AnswerParser) -> Iterator[bytes]:
        begun = len(parser.calls)
        pieces = parser.feed(delta.text, last=delta.finish_reason is not None)
        added = self._delta(pieces, begun)
        logprobs, ids = self.logprobs.chat(delta.logprobs), self._own_ids(delta)
        if pieces or logprobs or ids:
            if not pieces:
                added.content = ""
            yield self._event(ChatChunkChoice(delta.index, added, logprobs=logprobs, token_ids=ids))

    def _delta(self, pieces: list[Piece], begun: int) -> ChatDelta:
        """What pieces add to the message.

        Args:
            begun: calls begun before.
        """
        added = ChatDelta()
        calls: dict[int, CallDelta] = {}
        for kind, text in pieces:
            if kind == "content":
                added.content = (added.content or "") + text
            elif kind == "reasoning":
                added.reasoning = added.reasoning_content = (added.reasoning or "") + text
            elif kind == "call":
                function = FunctionDelta(text, "")
                calls[begun] = CallDelta(begun, self._new_call_id(), "function", function)
                begun += 1
            else:
                call = calls.setdefault(begun - 1, CallDelta(begun - 1))
                call.function = call.function or FunctionDelta()
                call.function.arguments = (call.function.arguments or "") + text
        added.tool_calls = list(calls.values()) or None
        return added

    def _own_ids(self, delta: CompletionDelta) -> list[int] | msgspec.UnsetType:
        return msgspec.UNSET if self._prompt_ids is None else list(delta.token_ids)

    def _event(self, choice: ChatChunkChoice) -> bytes:
        return event(self._chunk(choices=[choice], usage=self._usage()))
