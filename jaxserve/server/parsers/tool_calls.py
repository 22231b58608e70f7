"""Formats in which models write tool calls: one parser for each, and a registry by name."""

from __future__ import annotations

import re
import secrets
import string
from typing import ClassVar

from jaxserve.server.parsers.call_scanner import CallScanner, CallSequence, ValueEnd
from jaxserve.server.parsers.text_parser import (
    ParsedDelta,
    TextParser,
    content_delta,
    split_at_marker,
)


class ToolParser(TextParser):
    """Parses one format of tool calls.

    markers: strings that the model writes around calls. If they are special tokens, the text must
    be decoded with special tokens.
    """

    markers: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def new_call_id() -> str:
        return f"call_{secrets.token_hex(12)}"


class _MarkedCallParser(ToolParser):
    """Content up to a marker, calls after it. White space before the marker is dropped."""

    def __init__(self) -> None:
        self._held = ""
        self._called = False
        self._inside = False

    def feed(self, text: str) -> list[ParsedDelta]:
        deltas: list[ParsedDelta] = []
        rest: str | None = text
        while rest:
            if self._inside:
                more, rest = self._feed_call(rest)
                self._called |= any(delta.kind == "call" for delta in more)
                deltas += more
                self._inside = rest is None
                continue
            before, marker, after = split_at_marker(self._held + rest, self.markers[:1])
            kept = before.rstrip()
            deltas += content_delta(kept)
            if marker is None:
                self._held = before[len(kept) :] + after
                return deltas
            self._held, self._inside, rest = "", True, after
            self._begin()
        return deltas

    def finish(self) -> list[ParsedDelta]:
        if self._inside:
            return self._end_call()
        return content_delta(self._held.rstrip() if self._called else self._held)

    def _begin(self) -> None:
        """Called when the marker was found."""
        raise NotImplementedError

    def _feed_call(self, text: str) -> tuple[list[ParsedDelta], str | None]:
        """What the text after the marker adds, and the text after the call; None while the call
        isn't complete."""
        raise NotImplementedError

    def _end_call(self) -> list[ParsedDelta]:
        """What was held back of a call that isn't complete at the end of the output."""
        raise NotImplementedError


class HermesParser(_MarkedCallParser):
    """<tool_call> {"name": ..., "arguments": {...}} </tool_call>, the format of Hermes and Qwen."""

    markers = ("<tool_call>", "</tool_call>")

    def _begin(self) -> None:
        self._scanner: CallScanner | None = None
        self._closing: str | None = None  # text after the JSON object

    def _feed_call(self, text: str) -> tuple[list[ParsedDelta], str | None]:
        deltas: list[ParsedDelta] = []
        if self._scanner is None:
            text = text.lstrip()
            if not text:
                return [], None
            if text[0] != "{":
                return content_delta(self.markers[0]), text
            self._scanner = CallScanner()
        if self._closing is None:
            deltas, rest = self._scanner.feed(text)
            if rest is None:
                return deltas, None
            if not self._scanner.is_call:
                return content_delta(self.markers[0]) + deltas, rest
            self._closing, text = "", rest
        self._closing = (self._closing + text).lstrip()
        close = self.markers[1]
        if close.startswith(self._closing) and self._closing != close:
            return deltas, None
        return deltas, self._closing.removeprefix(close)

    def _end_call(self) -> list[ParsedDelta]:
        if self._scanner is not None and self._scanner.is_call:
            return []
        return content_delta(self.markers[0]) + (self._scanner.finish() if self._scanner else [])


class MistralParser(_MarkedCallParser):
    """[TOOL_CALLS] and a JSON array of calls, or, from tokenizer version 11 on, a name and its
    arguments: [TOOL_CALLS]name[ARGS]{...}."""

    markers = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    _NAMED = re.compile(r"\s*(?P<name>[^\[{\s]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)")

    @staticmethod
    def new_call_id() -> str:
        # Mistral's chat templates refuse ids of any other form.
        letters = string.ascii_letters + string.digits
        return "".join(secrets.choice(letters) for _ in range(9))

    def _begin(self) -> None:
        self._raw = ""
        self._array: CallSequence | None = None
        self._arguments: ValueEnd | None = None

    def _feed_call(self, text: str) -> tuple[list[ParsedDelta], str | None]:
        if self._array is not None:
            return self._array.feed(text)
        if self._arguments is not None:
            return self._feed_arguments(text)
        self._raw += text
        bare = self._raw.lstrip()
        if bare.startswith("["):
            self._array = CallSequence("[,", closer="]")
            return self._feed_call(bare)
        if not (named := self._NAMED.match(self._raw)):
            return [], None
        self._arguments = ValueEnd()
        deltas, rest = self._feed_arguments(self._raw[named.end() :])
        return [ParsedDelta("call", named["name"]), *deltas], rest

    def _feed_arguments(self, text: str) -> tuple[list[ParsedDelta], str | None]:
        assert self._arguments is not None
        end = self._arguments.feed(text)
        return [ParsedDelta("arguments", text[:end])], None if end is None else text[end:]

    def _end_call(self) -> list[ParsedDelta]:
        if self._array is not None:
            return self._array.finish()
        return [] if self._arguments is not None else content_delta(self.markers[0] + self._raw)


class Llama3JsonParser(ToolParser):
    """{"name": ..., "parameters": {...}} at the beginning of the output; several are separated by
    semicolons, and Llama 3 may write <|python_tag|> before them."""

    markers = ("<|python_tag|>",)

    def __init__(self) -> None:
        self._held = ""
        self._calls: CallSequence | None = None
        self._plain = False

    def feed(self, text: str) -> list[ParsedDelta]:
        if self._plain:
            return content_delta(text)
        deltas: list[ParsedDelta] = []
        if self._calls is None:
            text = self._held + text
            bare = text.lstrip()
            inner = bare.removeprefix(self.markers[0]).lstrip()
            if not inner or self.markers[0].startswith(bare):
                self._held = text
                return []
            if inner[0] != "{":
                self._plain = True
                return content_delta(text)
            self._held, text, self._calls = "", inner, CallSequence(";")
        deltas, rest = self._calls.feed(text)
        if rest is None:
            return deltas
        self._plain = True
        return deltas + content_delta(rest)

    def finish(self) -> list[ParsedDelta]:
        if self._plain:
            return []
        return self._calls.finish() if self._calls else content_delta(self._held)


class RequiredCallsParser(ToolParser):
    """A JSON array of calls and nothing else: the output of the grammar that tool_choice
    "required" sets."""

    def __init__(self) -> None:
        self._calls = CallSequence("[,]")
        self._plain = False

    def feed(self, text: str) -> list[ParsedDelta]:
        if self._plain:
            return content_delta(text)
        deltas, rest = self._calls.feed(text)
        self._plain = rest is not None
        return deltas + content_delta(rest or "")

    def finish(self) -> list[ParsedDelta]:
        return []  # only a call that was cut off before its name can be left


class NamedCallParser(ToolParser):
    """The arguments of a call to the tool that the request names, and nothing else."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def feed(self, text: str) -> list[ParsedDelta]:
        if not text:
            return []
        first = [] if self._name is None else [ParsedDelta("call", self._name)]
        self._name = None
        return [*first, ParsedDelta("arguments", text)]

    def finish(self) -> list[ParsedDelta]:
        return []


TOOL_PARSERS: dict[str, type[ToolParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
    "mistral": MistralParser,
}
