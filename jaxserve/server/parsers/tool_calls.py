"""How models write calls of tools: one small parser a format, in a registry."""

from __future__ import annotations

import re
import secrets
import string
from typing import ClassVar

from jaxserve.server.parsers.call_scanner import CallScanner, CallSequence, ValueEnd
from jaxserve.server.parsers.pieces import Piece, TextParser, content, cut


class ToolParser(TextParser):
    """A format of calls.

    markers: strings that the model writes around calls. Where they are special tokens of its
    vocabulary, those must show in the text.
    """

    markers: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def new_call_id() -> str:
        return f"call_{secrets.token_hex(12)}"


class _Marked(ToolParser):
    """Content up to a marker, calls after it. White space between the two is dropped."""

    def __init__(self) -> None:
        self._held = ""
        self._called = False
        self._inside = False

    def feed(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        rest: str | None = text
        while rest:
            if self._inside:
                more, rest = self._feed_call(rest)
                self._called |= any(piece.kind == "call" for piece in more)
                pieces += more
                self._inside = rest is None
                continue
            before, marker, after = cut(self._held + rest, self.markers[:1])
            kept = before.rstrip()
            pieces += content(kept)
            if marker is None:
                self._held = before[len(kept) :] + after
                return pieces
            self._held, self._inside, rest = "", True, after
            self._begin()
        return pieces

    def finish(self) -> list[Piece]:
        if self._inside:
            return self._end_call()
        return content(self._held.rstrip() if self._called else self._held)

    def _begin(self) -> None:
        """The marker was seen."""
        raise NotImplementedError

    def _feed_call(self, text: str) -> tuple[list[Piece], str | None]:
        """What the text after the marker tells, and what follows the call; None while it goes
        on."""
        raise NotImplementedError

    def _end_call(self) -> list[Piece]:
        """What is left of a call that was never closed."""
        raise NotImplementedError


class Hermes(_Marked):
    """<tool_call> {"name": ..., "arguments": {...}} </tool_call>, as Hermes and Qwen write it."""

    markers = ("<tool_call>", "</tool_call>")

    def _begin(self) -> None:
        self._scanner: CallScanner | None = None
        self._closing: str | None = None  # what came after the object

    def _feed_call(self, text: str) -> tuple[list[Piece], str | None]:
        pieces: list[Piece] = []
        if self._scanner is None:
            text = text.lstrip()
            if not text:
                return [], None
            if text[0] != "{":
                return content(self.markers[0]), text
            self._scanner = CallScanner()
        if self._closing is None:
            pieces, rest = self._scanner.feed(text)
            if rest is None:
                return pieces, None
            if not self._scanner.is_call:
                return content(self.markers[0]) + pieces, rest
            self._closing, text = "", rest
        self._closing = (self._closing + text).lstrip()
        close = self.markers[1]
        if close.startswith(self._closing) and self._closing != close:
            return pieces, None
        return pieces, self._closing.removeprefix(close)

    def _end_call(self) -> list[Piece]:
        if self._scanner is not None and self._scanner.is_call:
            return []
        return content(self.markers[0]) + (self._scanner.finish() if self._scanner else [])


class Mistral(_Marked):
    """[TOOL_CALLS] and a JSON array of calls, or, from tokenizer version 11 on, a name and its
    arguments: [TOOL_CALLS]name[ARGS]{...}."""

    markers = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    _NAMED = re.compile(r"\s*(?P<name>[^\[{\s]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)")

    @staticmethod
    def new_call_id() -> str:
        # Its templates refuse any other form.
        letters = string.ascii_letters + string.digits
        return "".join(secrets.choice(letters) for _ in range(9))

    def _begin(self) -> None:
        self._raw = ""
        self._array: CallSequence | None = None
        self._arguments: ValueEnd | None = None

    def _feed_call(self, text: str) -> tuple[list[Piece], str | None]:
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
        pieces, rest = self._feed_arguments(self._raw[named.end() :])
        return [Piece("call", named["name"]), *pieces], rest

    def _feed_arguments(self, text: str) -> tuple[list[Piece], str | None]:
        assert self._arguments is not None
        end = self._arguments.feed(text)
        return [Piece("arguments", text[:end])], None if end is None else text[end:]

    def _end_call(self) -> list[Piece]:
        if self._array is not None:
            return self._array.finish()
        return [] if self._arguments is not None else content(self.markers[0] + self._raw)


class Llama3Json(ToolParser):
    """{"name": ..., "parameters": {...}}, several with semicolons between them, and nothing
    before; Llama 3 may write <|python_tag|> first."""

    markers = ("<|python_tag|>",)

    def __init__(self) -> None:
        self._held = ""
        self._calls: CallSequence | None = None
        self._plain = False

    def feed(self, text: str) -> list[Piece]:
        if self._plain:
            return content(text)
        pieces: list[Piece] = []
        if self._calls is None:
            text = self._held + text
            bare = text.lstrip()
            inner = bare.removeprefix(self.markers[0]).lstrip()
            if not inner or self.markers[0].startswith(bare):
                self._held = text
                return []
            if inner[0] != "{":
                self._plain = True
                return content(text)
            self._held, text, self._calls = "", inner, CallSequence(";")
        pieces, rest = self._calls.feed(text)
        if rest is None:
            return pieces
        self._plain = True
        return pieces + content(rest)

    def finish(self) -> list[Piece]:
        if self._plain:
            return []
        return self._calls.finish() if self._calls else content(self._held)


class RequiredCalls(ToolParser):
    """A JSON array of calls and nothing else: what the grammar of tool_choice "required" gives."""

    def __init__(self) -> None:
        self._calls = CallSequence("[,]")
        self._plain = False

    def feed(self, text: str) -> list[Piece]:
        if self._plain:
            return content(text)
        pieces, rest = self._calls.feed(text)
        self._plain = rest is not None
        return pieces + content(rest or "")

    def finish(self) -> list[Piece]:
        return []  # a call cut off before its name


class NamedCall(ToolParser):
    """The arguments of one tool, which the request named, and nothing else."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def feed(self, text: str) -> list[Piece]:
        if not text:
            return []
        begin = [] if self._name is None else [Piece("call", self._name)]
        self._name = None
        return [*begin, Piece("arguments", text)]

    def finish(self) -> list[Piece]:
        return []


TOOL_PARSERS: dict[str, type[ToolParser]] = {
    "hermes": Hermes,
    "llama3_json": Llama3Json,
    "mistral": Mistral,
}
