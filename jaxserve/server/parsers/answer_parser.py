"""Splits a choice's text into reasoning, content and tool calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jaxserve.outputs import FinishReason
from jaxserve.server.parsers.text_parser import ParsedDelta, TextParser, content_delta


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What to look for in the text of a request's choices.

    Args:
        reasoning, tools: make a parser; None if the text is not parsed for it.
        show_reasoning: False drops the reasoning.
        parallel_calls: False drops all calls but the first.
        calls_finish: whether a choice with calls reports finish_reason "tool_calls". As in
            OpenAI's API, it doesn't if the request named the function.
    """

    reasoning: Callable[[], TextParser] | None = None
    tools: Callable[[], TextParser] | None = None
    show_reasoning: bool = True
    parallel_calls: bool = True
    calls_finish: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether all text is content."""
        return self.reasoning is None and self.tools is None

    def new_parser(self) -> AnswerParser:
        return AnswerParser(
            self,
            self.reasoning() if self.reasoning else None,
            self.tools() if self.tools else None,
        )


@dataclass(slots=True)
class ParsedCall:
    name: str
    arguments: str = ""


@dataclass(slots=True)
class AnswerParser:
    """Parses one choice incrementally, and keeps what it has found.

    content, reasoning: the text of each so far.
    """

    format: AnswerFormat
    reasoning_parser: TextParser | None
    tool_parser: TextParser | None
    content: str = ""
    reasoning: str = ""
    calls: list[ParsedCall] = field(default_factory=list)
    _dropping: bool = False

    def feed(self, text: str, last: bool) -> list[ParsedDelta]:
        """What this text adds.

        Args:
            last: there is no more text.
        """
        deltas = _parse_content(self.reasoning_parser, content_delta(text), last)
        deltas = _parse_content(self.tool_parser, deltas, last)
        return [delta for delta in deltas if self._keep(delta)]

    def finish_reason(self, reason: FinishReason) -> str:
        """OpenAI's finish reason of this choice."""
        called = self.calls and reason == "stop" and self.format.calls_finish
        return "tool_calls" if called else reason

    def _keep(self, delta: ParsedDelta) -> bool:
        """Records a delta; returns whether the response has it."""
        match delta.kind:
            case "content":
                self.content += delta.text
            case "reasoning":
                self.reasoning += delta.text
                return self.format.show_reasoning
            case "call":
                self._dropping = bool(self.calls) and not self.format.parallel_calls
                if not self._dropping:
                    self.calls.append(ParsedCall(delta.text))
            case "arguments" if not self._dropping:
                self.calls[-1].arguments += delta.text
        return delta.kind == "content" or not self._dropping


def _parse_content(
    parser: TextParser | None, deltas: Sequence[ParsedDelta], last: bool
) -> list[ParsedDelta]:
    """The deltas, with the content among them replaced by what a parser finds in it."""
    if parser is None:
        return list(deltas)
    found: list[ParsedDelta] = []
    for delta in deltas:
        found += parser.feed(delta.text) if delta.kind == "content" else [delta]
    return found + parser.finish() if last else found
