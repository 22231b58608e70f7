"""A choice's text taken apart: reasoning, content, and calls of tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jaxserve.outputs import FinishReason
from jaxserve.server.parsers import Piece, TextParser


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """Makes the parsers of a request's choices.

    Args:
        reasoning, tools: make a parser; None if there is nothing of the kind to look for.
        show_reasoning: False drops it.
        parallel: False drops all calls but the first.
        calls_finish: whether a choice with calls ends for their sake; not if the request named
            the function, as OpenAI has it.
    """

    reasoning: Callable[[], TextParser] | None = None
    tools: Callable[[], TextParser] | None = None
    show_reasoning: bool = True
    parallel: bool = True
    calls_finish: bool = True

    def __bool__(self) -> bool:
        return self.reasoning is not None or self.tools is not None

    def start(self) -> AnswerParser:
        return AnswerParser(
            self,
            self.reasoning() if self.reasoning else None,
            self.tools() if self.tools else None,
        )


@dataclass(slots=True)
class Call:
    name: str
    arguments: str = ""


@dataclass(slots=True)
class AnswerParser:
    """Reads one choice as it comes, and keeps what it has found.

    content, thought: the text of each so far.
    """

    parts: AnswerParts
    reasoning: TextParser | None
    tools: TextParser | None
    content: str = ""
    thought: str = ""
    calls: list[Call] = field(default_factory=list)
    _dropping: bool = False

    def feed(self, text: str, last: bool) -> list[Piece]:
        """The pieces that this text adds.

        Args:
            last: there is no more text.
        """
        pieces = _through(self.reasoning, [Piece("content", text)] if text else [], last)
        pieces = _through(self.tools, pieces, last)
        kept = [piece for piece in pieces if self._keep(piece)]
        return kept

    def finish_reason(self, reason: FinishReason) -> str:
        """OpenAI's reason for the end of this choice."""
        called = self.calls and reason == "stop" and self.parts.calls_finish
        return "tool_calls" if called else reason

    def _keep(self, piece: Piece) -> bool:
        match piece.kind:
            case "content":
                self.content += piece.text
            case "reasoning":
                self.thought += piece.text
                return self.parts.show_reasoning
            case "call":
                self._dropping = bool(self.calls) and not self.parts.parallel
                if not self._dropping:
                    self.calls.append(Call(piece.text))
            case "arguments" if not self._dropping:
                self.calls[-1].arguments += piece.text
        return piece.kind == "content" or not self._dropping


def _through(parser: TextParser | None, pieces: Sequence[Piece], last: bool) -> list[Piece]:
    """Pieces with their content taken apart by a parser."""
    if parser is None:
        return list(pieces)
    found: list[Piece] = []
    for piece in pieces:
        found += parser.feed(piece.text) if piece.kind == "content" else [piece]
    return found + parser.finish() if last else found
