"""Builds a message incrementally from the model's text, and the events of a stream with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from jaxserve.outputs import CompletionDelta
from jaxserve.server.parsers import ParsedDelta
from jaxserve.server.parsers.answer_parser import AnswerParser
from jaxserve.server.wire.errors import ApiError
from jaxserve.server.wire.messages.response import (
    Block,
    Message,
    MessageUsage,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    message_error,
)
from jaxserve.server.wire.response_fields import TokenCount
from jaxserve.server.wire.sse import named_event


class MessageBuilder:
    """Builds one message. Each method returns the encoded events of its change.

    Args:
        message: before any content.
        most_tokens: the request's limit; an answer that ends with fewer has filled the context.
        count: of the request's tokens, up to date when a method is called.
    """

    def __init__(
        self,
        message: Message,
        parser: AnswerParser,
        count: TokenCount,
        most_tokens: int,
        new_call_id: Callable[[], str],
        request_id: str,
    ) -> None:
        self.message = message
        self._parser, self._count, self._most_tokens = parser, count, most_tokens
        self._new_call_id, self._request_id = new_call_id, request_id
        self._block: Block | None = None  # the last one, while it isn't complete
        self._arguments = ""  # of the block, if it is a call
        self._begun = False

    def feed(self, delta: CompletionDelta) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            self.message.usage = message_usage(self._count)
            self.message.usage.output_tokens = 0
            yield _event("message_start", message=self.message)
        for parsed in self._parser.feed(delta.text, delta.finish_reason is not None):
            yield from self._add(parsed)
        if delta.finish_reason is not None:
            self.message.stop_reason = self._stop_reason(delta)

    def end(self) -> Iterator[bytes]:
        """Completes the message after its choice has ended."""
        yield from self._close()
        message = self.message
        message.usage = message_usage(self._count)
        reasons = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
        yield _event("message_delta", delta=reasons, usage=message.usage)
        yield _event("message_stop")

    def fail(self, error: ApiError) -> bytes:
        return named_event("error", message_error(error, self._request_id))

    def _stop_reason(self, delta: CompletionDelta) -> str:
        if delta.finish_reason == "length":
            is_whole = self._count.completion >= self._most_tokens
            return "max_tokens" if is_whole else "model_context_window_exceeded"
        if self._parser.calls:
            return "tool_use"
        if isinstance(delta.stop_reason, str):
            self.message.stop_sequence = delta.stop_reason
            return "stop_sequence"
        return "end_turn"

    def _add(self, parsed: ParsedDelta) -> Iterator[bytes]:
        match parsed.kind:
            case "content":
                if not isinstance(self._block, TextBlock):
                    yield from self._open(TextBlock())
                assert isinstance(self._block, TextBlock)
                self._block.text += parsed.text
                yield self._delta("text_delta", text=parsed.text)
            case "reasoning":
                if not isinstance(self._block, ThinkingBlock):
                    yield from self._open(ThinkingBlock())
                assert isinstance(self._block, ThinkingBlock)
                self._block.thinking += parsed.text
                yield self._delta("thinking_delta", thinking=parsed.text)
            case "call":
                self._arguments = ""
                yield from self._open(ToolUseBlock(id=self._new_call_id(), name=parsed.text))
            case "arguments":
                self._arguments += parsed.text
                yield self._delta("input_json_delta", partial_json=parsed.text)

    def _open(self, block: Block) -> Iterator[bytes]:
        yield from self._close()
        self._block = block
        self.message.content.append(block)
        yield _event("content_block_start", index=self._index, content_block=block)

    def _close(self) -> Iterator[bytes]:
        if self._block is None:
            return
        if isinstance(self._block, ToolUseBlock):
            self._block.input = _object(self._arguments)
        elif isinstance(self._block, ThinkingBlock):
            signature = hashlib.sha256(self._block.thinking.encode()).hexdigest()
            self._block.signature = signature
            yield self._delta("signature_delta", signature=signature)
        yield _event("content_block_stop", index=self._index)
        self._block = None

    @property
    def _index(self) -> int:
        return len(self.message.content) - 1

    def _delta(self, kind: str, **fields: Any) -> bytes:
        return _event("content_block_delta", index=self._index, delta={"type": kind} | fields)


def message_usage(count: TokenCount) -> MessageUsage:
    return MessageUsage(
        input_tokens=count.prompt - count.cached,
        output_tokens=count.completion,
        cache_read_input_tokens=count.cached,
    )


def _event(kind: str, **fields: Any) -> bytes:
    return named_event(kind, {"type": kind} | fields)


def _object(arguments: str) -> dict[str, Any]:
    """The arguments of a call; none if they were cut off."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
