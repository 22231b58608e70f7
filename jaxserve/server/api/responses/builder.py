"""Builds a response incrementally from the model's text, and the events of a stream with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from jaxserve.outputs import CompletionDelta, FinishReason
from jaxserve.server.api.responses.text_logprobs import TextLogprobs, split_by_token
from jaxserve.server.api.shared.logprobs_writer import ChoiceLogprobs
from jaxserve.server.parsers import ParsedDelta
from jaxserve.server.parsers.answer_parser import AnswerParser
from jaxserve.server.wire.errors import ApiError
from jaxserve.server.wire.logprobs import ChatLogprob
from jaxserve.server.wire.response_fields import new_id
from jaxserve.server.wire.responses.response import (
    FunctionCallItem,
    Item,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Response,
    ResponseUsage,
)
from jaxserve.server.wire.sse import named_event


class ResponseBuilder:
    """Builds one response. Each method returns the encoded events of its change.

    Args:
        response: before any output.
    """

    def __init__(
        self,
        response: Response,
        parser: AnswerParser,
        logprobs: ChoiceLogprobs,
        new_call_id: Callable[[], str],
    ) -> None:
        self.response = response
        self._parser, self._logprobs, self._new_call_id = parser, logprobs, new_call_id
        self._sequence = 0
        self._item: Item | None = None  # the last item of the output, while it isn't complete
        self._unsent = TextLogprobs()
        self._reason: FinishReason = "stop"

    def begin(self) -> Iterator[bytes]:
        for name in ("created", "in_progress"):
            yield self._event(f"response.{name}", response=self.response)

    def feed(self, delta: CompletionDelta) -> Iterator[bytes]:
        if not self._sequence:
            yield from self.begin()
        last = delta.finish_reason is not None
        if logprobs := self._logprobs.chat(delta.logprobs):
            for piece, token in split_by_token(delta.text, logprobs.content):
                self._unsent.add(token)
                yield from self._parse(piece, last and token is logprobs.content[-1])
        else:
            yield from self._parse(delta.text, last)
        if delta.finish_reason is not None:
            self._reason = delta.finish_reason

    def end(self, usage: ResponseUsage) -> Iterator[bytes]:
        """Completes the response after its choice has ended."""
        if not self.response.output:
            yield from self._open(MessageItem(id=new_id("msg_")))
        response = self.response
        response.usage = usage
        response.completed_at = int(time.time())
        response.status = "completed" if self._reason == "stop" else "incomplete"
        if response.status == "incomplete":
            response.incomplete_details = {"reason": "max_output_tokens"}
        yield from self._close()
        yield self._event(f"response.{response.status}", response=response)

    def fail(self, error: ApiError) -> bytes:
        self.response.status = "failed"
        self.response.error = {"code": "server_error", "message": error.message}
        return self._event("response.failed", response=self.response)

    def _parse(self, text: str, last: bool) -> Iterator[bytes]:
        parts = self._parser.feed(text, last)
        for parsed, logprobs in zip(parts, self._unsent.of_parts(parts), strict=True):
            yield from self._add(parsed, logprobs)

    def _add(self, parsed: ParsedDelta, logprobs: list[ChatLogprob]) -> Iterator[bytes]:
        match parsed.kind:
            case "content":
                if not isinstance(self._item, MessageItem):
                    yield from self._open(MessageItem(id=new_id("msg_")))
                yield self._add_text(parsed.text, logprobs)
            case "reasoning":
                if not isinstance(self._item, ReasoningItem):
                    yield from self._open(ReasoningItem(id=new_id("rs_")))
                yield self._add_reasoning(parsed.text)
            case "call":
                call_id = self._new_call_id()
                item = FunctionCallItem(id=new_id("fc_"), call_id=call_id, name=parsed.text)
                yield from self._open(item)
            case "arguments":
                assert isinstance(self._item, FunctionCallItem)
                self._item.arguments += parsed.text
                yield self._event_in_item(
                    "response.function_call_arguments.delta", delta=parsed.text
                )

    def _add_text(self, text: str, logprobs: list[ChatLogprob]) -> bytes:
        assert isinstance(self._item, MessageItem)
        part = self._item.content[0]
        part.text += text
        part.logprobs += logprobs
        return self._event_in_part("response.output_text.delta", delta=text, logprobs=logprobs)

    def _add_reasoning(self, text: str) -> bytes:
        assert isinstance(self._item, ReasoningItem)
        self._item.content[0].text += text
        return self._event_in_part("response.reasoning_text.delta", delta=text)

    def _open(self, item: Item) -> Iterator[bytes]:
        yield from self._close()
        self._item = item
        self.response.output.append(item)
        yield self._event("response.output_item.added", output_index=self._output_index, item=item)
        part: OutputText | ReasoningText
        if isinstance(item, MessageItem):
            part = OutputText()
            item.content.append(part)
        elif isinstance(item, ReasoningItem):
            part = ReasoningText()
            item.content.append(part)
        else:
            return
        yield self._event_in_part("response.content_part.added", part=part)

    def _close(self) -> Iterator[bytes]:
        item = self._item
        if item is None:
            return
        # Only the last item can be incomplete.
        item.status = "incomplete" if self.response.status == "incomplete" else "completed"
        if isinstance(item, MessageItem):
            part = item.content[0]
            yield self._event_in_part(
                "response.output_text.done", text=part.text, logprobs=part.logprobs
            )
            yield self._event_in_part("response.content_part.done", part=part)
        elif isinstance(item, ReasoningItem):
            reasoning = item.content[0]
            yield self._event_in_part("response.reasoning_text.done", text=reasoning.text)
            yield self._event_in_part("response.content_part.done", part=reasoning)
        else:
            yield self._event_in_item(
                "response.function_call_arguments.done", name=item.name, arguments=item.arguments
            )
        yield self._event("response.output_item.done", output_index=self._output_index, item=item)
        self._item = None

    @property
    def _output_index(self) -> int:
        return len(self.response.output) - 1

    def _event_in_part(self, kind: str, **fields: Any) -> bytes:
        return self._event_in_item(kind, content_index=0, **fields)

    def _event_in_item(self, kind: str, **fields: Any) -> bytes:
        assert self._item is not None
        return self._event(kind, item_id=self._item.id, output_index=self._output_index, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        fields = {"type": kind, "sequence_number": self._sequence} | fields
        self._sequence += 1
        return named_event(kind, fields)
