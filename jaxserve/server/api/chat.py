"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec
from aiohttp import web

from jaxserve.outputs import CompletionDelta
from jaxserve.sampling.params import SamplingParams
from jaxserve.server.api.shared import generation
from jaxserve.server.api.shared.conversation import ChatPrompt, chat_conversation
from jaxserve.server.api.shared.json_body import json_response
from jaxserve.server.api.shared.logprobs_writer import LogprobsWriter
from jaxserve.server.api.shared.start_chat import start_chat
from jaxserve.server.context import ServerContext
from jaxserve.server.parsers import ParsedDelta
from jaxserve.server.parsers.answer_parser import AnswerParser
from jaxserve.server.wire.chat.messages import CalledFunction, ToolCall
from jaxserve.server.wire.chat.request import CHAT_UNSUPPORTED, ChatCompletionRequest
from jaxserve.server.wire.chat.response import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    FunctionDelta,
    ResponseMessage,
    ToolCallDelta,
)
from jaxserve.server.wire.response_fields import TokenCount, Usage
from jaxserve.server.wire.sse import TextEvent, event


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    chat = await start_chat(request, ChatCompletionRequest, CHAT_UNSUPPORTED, render)
    context, body, prompt, count = chat.context, chat.body, chat.prompt, chat.count
    writer = _ChoiceWriter(context, body, prompt, chat.params, count)
    if body.stream:
        last = generation.closing_events(writer.usage_event if body.include_usage else None)
        return await generation.stream(request, chat.batches, writer.events, last, count)
    outputs = await generation.gather(chat.batches, chat.params.n, count)
    choices = list(map(writer.choice, outputs))
    response = ChatCompletion(
        **context.response_header("chatcmpl", chat.body.model),
        object="chat.completion",
        choices=choices,
        usage=await writer.whole_usage(),
    )
    if body.return_token_ids:
        response.prompt_token_ids = prompt.ids
    if outputs[0].prompt_logprobs is not None:
        response.prompt_logprobs = writer.logprobs.prompt(prompt.ids, outputs[0].prompt_logprobs)
    return json_response(response)


def render(
    context: ServerContext, body: ChatCompletionRequest, params: SamplingParams
) -> ChatPrompt:
    """The prompt, by the model's chat template.

    Raises:
        InvalidRequestError: a message is malformed or unsupported, the template refuses the
            messages or doesn't use a field that is set, or the prompt is too long.
    """
    return chat_conversation(body).render(
        context,
        params,
        bool(body.add_special_tokens),
        body.include_reasoning is not False,
    )


class _ChoiceWriter:
    """Writes the choices of one chat completion, whole or as events.

    A choice's first event has the role, the next ones its text, and the last its finish reason.
    """

    def __init__(
        self,
        context: ServerContext,
        body: ChatCompletionRequest,
        prompt: ChatPrompt,
        params: SamplingParams,
        count: TokenCount,
    ) -> None:
        self.logprobs = LogprobsWriter(
            context.client.tokenizer,
            params.skip_special_tokens,
            bool(body.return_tokens_as_token_ids),
        )
        self._choices = {i: self.logprobs.choice(prompt.ids) for i in range(params.n)}
        self._prompt_ids = prompt.ids if body.return_token_ids else None
        self._format, self._context, self._count = prompt.answer_format, context, count
        self._new_call_id = context.new_call_id
        more_than_text = body.return_token_ids or body.logprobs or body.continuous_usage
        self._is_plain = prompt.answer_format.is_plain and not more_than_text
        self._usage = generation.chunk_usage(body, count)
        self._chunk = partial(
            ChatChunk,
            **context.response_header("chatcmpl", body.model),
            object="chat.completion.chunk",
        )
        self._parsers: dict[int, AnswerParser] = {}
        self._text_events: dict[int, TextEvent] = {}

    def choice(self, output: CompletionDelta) -> ChatChoice:
        assert output.finish_reason is not None
        answer = self._parsers[output.index] = self._format.new_parser()
        answer.feed(output.text, last=True)
        # Content is null if there are only calls or reasoning, as in OpenAI's API.
        message = ResponseMessage(
            content=answer.content or ("" if not (answer.calls or answer.reasoning) else None)
        )
        if answer.reasoning and self._format.show_reasoning:
            message.reasoning = message.reasoning_content = answer.reasoning
        if answer.calls:
            message.tool_calls = [
                ToolCall(
                    id=self._new_call_id(),
                    function=CalledFunction(name=call.name, arguments=call.arguments),
                )
                for call in answer.calls
            ]
        return ChatChoice(
            output.index,
            message,
            answer.finish_reason(output.finish_reason),
            output.stop_reason,
            self._choices[output.index].chat(output.logprobs),
            self._token_ids(output),
        )

    def events(self, delta: CompletionDelta) -> list[bytes]:
        text_event = self._text_events.get(delta.index)
        if self._is_plain and text_event is not None and delta.finish_reason is None:
            return [text_event(delta.text)] if delta.text else []
        return list(self._all_events(delta))

    def _all_events(self, delta: CompletionDelta) -> Iterator[bytes]:
        parser = self._parsers.get(delta.index)
        if parser is None:
            parser = self._parsers[delta.index] = self._format.new_parser()
            yield self._first_event(delta)
        if not self._is_plain:
            yield from self._parsed_events(delta, parser)
        elif delta.text:
            yield self._text_events[delta.index](delta.text)
        if delta.finish_reason:
            reason = parser.finish_reason(delta.finish_reason)
            yield self._event(ChatChunkChoice(delta.index, ChatDelta(), reason, delta.stop_reason))

    async def whole_usage(self) -> Usage:
        """The token counts after all choices have ended."""
        reasoning = generation.count_reasoning(self._context, self._parsers.values())
        self._count.reasoning = await reasoning
        return self._count.usage()

    async def usage_event(self) -> bytes:
        return event(self._chunk(choices=[], usage=await self.whole_usage()))

    def _first_event(self, delta: CompletionDelta) -> bytes:
        """The event with the role, which adds no token to the usage."""
        index, usage = delta.index, self._usage()
        if isinstance(usage, Usage):
            usage.completion_tokens -= len(delta.token_ids)
            usage.total_tokens -= len(delta.token_ids)
        choice = ChatChunkChoice(index, ChatDelta(content=""))
        chunk = self._chunk(choices=[choice], usage=usage)
        self._text_events[index] = TextEvent(chunk, "content")
        choice.delta.role = "assistant"
        if self._prompt_ids is not None:
            chunk.prompt_token_ids = self._prompt_ids
        return event(chunk)

    def _parsed_events(self, delta: CompletionDelta, parser: AnswerParser) -> Iterator[bytes]:
        num_calls = len(parser.calls)
        parsed = parser.feed(delta.text, last=delta.finish_reason is not None)
        added = self._delta(parsed, num_calls)
        logprobs = self._choices[delta.index].chat(delta.logprobs)
        ids = self._token_ids(delta)
        if parsed or logprobs or ids:
            if not parsed:
                added.content = ""
            yield self._event(ChatChunkChoice(delta.index, added, logprobs=logprobs, token_ids=ids))

    def _delta(self, parsed: list[ParsedDelta], num_calls: int) -> ChatDelta:
        """What the parsed deltas add to the message.

        Args:
            num_calls: calls that began in earlier chunks.
        """
        added = ChatDelta()
        calls: dict[int, ToolCallDelta] = {}
        for kind, text in parsed:
            if kind == "content":
                added.content = (added.content or "") + text
            elif kind == "reasoning":
                added.reasoning = added.reasoning_content = (added.reasoning or "") + text
            elif kind == "call":
                function = FunctionDelta(text, "")
                calls[num_calls] = ToolCallDelta(
                    num_calls, self._new_call_id(), "function", function
                )
                num_calls += 1
            else:
                call = calls.setdefault(num_calls - 1, ToolCallDelta(num_calls - 1))
                call.function = call.function or FunctionDelta()
                call.function.arguments = (call.function.arguments or "") + text
        added.tool_calls = list(calls.values()) or None
        return added

    def _token_ids(self, delta: CompletionDelta) -> list[int] | msgspec.UnsetType:
        return msgspec.UNSET if self._prompt_ids is None else list(delta.token_ids)

    def _event(self, choice: ChatChunkChoice) -> bytes:
        return event(self._chunk(choices=[choice], usage=self._usage()))
