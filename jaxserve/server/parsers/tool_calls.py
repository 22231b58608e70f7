"""Formats in which models write tool calls: one parser for each, and a registry by name."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Collection
from typing import ClassVar

from jaxserve.server.parsers.call_scanner import CallScanner, CallSequence, ValueEnd
from jaxserve.server.parsers.text_parser import (
    ParsedDelta,
    TextParser,
    content_delta,
    split_at_marker,
)


class ToolParser(TextParser):
    """Parses one format of tool calls. Text that is no call of an offered tool is content, and no
    character of it is lost.

    markers: strings that the model writes around calls. If they are special tokens, the text must
    be decoded with special tokens.

    Args:
        names: of the tools that the request offers.
    """

    markers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    @staticmethod
    def new_call_id() -> str:
        return f"call_{secrets.token_hex(12)}"


class _MarkedCallParser(ToolParser):
    """Content up to a marker, calls after it. White space around calls is dropped."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._held = ""  # white space, and what may become a marker
        # Since the marker until a call is found: that white space with the marker, and the rest.
        self._prefix = self._inner = ""
        self._called = self._inside = False

    def feed(self, text: str) -> list[ParsedDelta]:
        deltas: list[ParsedDelta] = []
        rest: str | None = text
        while rest:
            if not self._inside:
                more, rest = self._find_marker(rest)
                deltas += more
                continue
            calls, after = self._feed_call(rest)
            deltas += calls
            if calls and self._prefix:
                self._called, self._prefix, self._inner = True, "", ""
            if self._prefix and after is not None:  # no call: what follows the marker is read again
                deltas += content_delta(self._prefix)
                after = self._inner + rest
                self._prefix = self._inner = ""
            elif self._prefix:
                self._inner += rest
            self._inside, rest = after is None, after
        return deltas

    def _find_marker(self, text: str) -> tuple[list[ParsedDelta], str | None]:
        """The content before the next marker, and the text after it; None if there is none."""
        before, marker, after = split_at_marker(self._held + text, self.markers[:1])
        kept = before.rstrip()
        if marker is None:
            self._held = before[len(kept) :] + after
            return content_delta(kept), None
        self._prefix, self._held, self._inside = before[len(kept) :] + marker, "", True
        self._begin()
        return content_delta(kept), after

    def finish(self) -> list[ParsedDelta]:
        if self._inside:
            return content_delta(self._prefix + self._inner) or self._unfinished()
        return content_delta(self._held.rstrip() if self._called else self._held)

    def _begin(self) -> None:
        """Called when the marker was found."""
        raise NotImplementedError

    def _feed_call(self, text: str) -> tuple[list[ParsedDelta], str | None]:
        """The calls that the text after the marker adds, and the text after them; None while more
        may come. Text without any call after it means that there is none."""
        raise NotImplementedError

    def _unfinished(self) -> list[ParsedDelta]:
        """Content that is held back after calls, at the end of the output."""
        return []


class HermesParser(_MarkedCallParser):
    """<tool_call> {"name": ..., "arguments": {...}} </tool_call>, the format of Hermes and Qwen."""

    markers = ("<tool_call>", "</tool_call>")

    def _begin(self) -> None:
        self._scanner = CallScanner(self._names)
        self._started = False
        self._closing: str | None = None  # text after the JSON object

    def _feed_call(self, text: str) -> tuple[list[ParsedDelta], str | None]:
        deltas: list[ParsedDelta] = []
        if not self._started:
            bare = text.lstrip()
            if not bare:
                return [], None
            if bare[0] != "{":
                return [], bare
            self._started, text = True, bare
        if self._closing is None:
            deltas, rest = self._scanner.feed(text)
            if rest is None:
                return [delta for delta in deltas if delta.kind != "content"], None
            if not self._scanner.is_call:
                return [], rest
            self._closing, text = "", rest
        self._closing = (self._closing + text).lstrip()
        close = self.markers[1]
        if close.startswith(self._closing) and self._closing != close:
            return deltas, None
        return deltas, self._closing.removeprefix(close)


class MistralParser(_MarkedCallParser):
    """[TOOL_CALLS] and a JSON array of calls, or, from tokenizer version 11 on, a name and its
    arguments: [TOOL_CALLS]name[ARGS]{...}."""

    markers = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    _NAMED = re.compile(r"\s*(?P<name>[^\[{\s]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)")
    _MAY_BE_NAMED = re.compile(r"\s*[\w.:/-]*\s*(?:\[[A-Z_\]\w]*)*\s*")

    @staticmethod
    def new_call_id() -> str:
        # Mistral's chat templates refuse ids of any other form.
        letters = string.ascii_letters + string.digits
        return "".join(secrets.choice(letters) for _ in range(9))

    def _begin(self) -> None:
        self._text = ""
        self._array: CallSequence | None = None
        self._arguments: ValueEnd | None = None

    def _feed_call(self, text: str) -> tuple[list[ParsedDelta], str | None]:
        if self._array is not None:
            return self._array.feed(text)
        if self._arguments is not None:
            return self._feed_arguments(text)
        before = len(self._text)
        self._text += text
        bare = self._text.lstrip()
        if bare.startswith("["):
            self._array = CallSequence(self._names, "[,", closer="]")
            return self._array.feed(bare)
        if named := self._NAMED.match(self._text):
            if named["name"] not in self._names:
                return [], text[max(0, named.end() - before) :]
            self._arguments = ValueEnd()
            deltas, rest = self._feed_arguments(self._text[named.end() :])
            return [ParsedDelta("call", named["name"]), *deltas], rest
        if self._MAY_BE_NAMED.fullmatch(self._text):
            return [], None
        return [], text

    def _unfinished(self) -> list[ParsedDelta]:
        return self._array.finish() if self._array else []

    def _feed_arguments(self, text: str) -> tuple[list[ParsedDelta], str | None]:
        assert self._arguments is not None
        end = self._arguments.feed(text)
        return [ParsedDelta("arguments", text[:end])], None if end is None else text[end:]


class Llama3JsonParser(ToolParser):
    """{"name": ..., "parameters": {...}} at the beginning of the output; several are separated by
    semicolons, and Llama 3 may write <|python_tag|> before them."""

    markers = ("<|python_tag|>",)

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
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
            self._held, self._calls = text[: len(text) - len(inner)], CallSequence(self._names, ";")
            text = inner
        deltas, rest = self._calls.feed(text)
        if deltas:
            self._held = ""
        if rest is None:
            return deltas
        self._plain = True
        return deltas + content_delta(self._held + rest)

    def finish(self) -> list[ParsedDelta]:
        if self._plain:
            return []
        rest = self._calls.finish() if self._calls else []
        return content_delta(self._held + "".join(delta.text for delta in rest))


class RequiredCallsParser(ToolParser):
    """A JSON array of calls and nothing else: the output of the grammar that tool_choice
    "required" sets."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._calls = CallSequence(names, "[,]")
        self._plain = False

    def feed(self, text: str) -> list[ParsedDelta]:
        if self._plain:
            return content_delta(text)
        deltas, rest = self._calls.feed(text)
        self._plain = rest is not None
        return deltas + content_delta(rest or "")

    def finish(self) -> list[ParsedDelta]:
        return [] if self._plain else self._calls.finish()


class NamedCallParser(ToolParser):
    """The arguments of a call to the tool that the request names, and nothing else."""

    def __init__(self, name: str) -> None:
        super().__init__((name,))
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
