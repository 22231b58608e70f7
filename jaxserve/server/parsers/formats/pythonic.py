"""Calls as Python writes them: [f(a=1), g(b="x")], bare or in the tags of Llama 4 and Olmo 3."""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

from jaxserve.server.parsers.block_calls import BlockParser
from jaxserve.server.parsers.call_reader import FoundCall, Offered, arguments_text
from jaxserve.server.parsers.text_parser import ParsedDelta, content_delta
from jaxserve.server.parsers.tool_parser import ToolParser

_NAMES = {"true": True, "false": False, "null": None}
_BEGIN = re.compile(r"\s*(\[\s*([A-Za-z_][\w.-]*\s*(\(.*)?)?)?", re.DOTALL)
_LONGEST = 256  # characters before the first parenthesis
_BRACKETS = {")": "(", "]": "[", "}": "{"}


def python_calls(text: str, offered: Offered) -> list[FoundCall]:
    """The calls of a Python list of calls with named literals; none if it is anything else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python doesn't know
            tree = ast.parse(text.strip(), mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List) else [tree]
        return [_call(node, offered) for node in nodes]
    except Exception:  # whatever isn't such a list, or too deep or long for Python
        return []


def _call(node: ast.expr, offered: Offered) -> FoundCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    name = ast.unparse(node.func)
    arguments = {word.arg: _value(word.value) for word in node.keywords if word.arg is not None}
    written = arguments_text(arguments)
    if name not in offered or len(arguments) < len(node.keywords) or written is None:
        raise ValueError("not a call of an offered tool")
    return FoundCall(name, written)


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Name(name) if name in _NAMES:
            return _NAMES[name]
        case ast.List(items) | ast.Tuple(items):
            return [_value(item) for item in items]
        case ast.Dict(keys, values):
            pairs = zip(keys, values, strict=True)
            return {str(_value(key)): _value(value) for key, value in pairs if key is not None}
        case _:
            value = ast.literal_eval(node)
            if not isinstance(value, str | int | float | bool | None):
                raise ValueError("not a value of JSON")
            return value


class _BracketScanner:
    """Finds the end of a Python list in text that comes bit by bit."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._quote, self._escaped = "", False
        self.malformed = False

    def feed(self, text: str) -> int | None:
        """The place in this text where the list ends; None if it doesn't end here."""
        for at, char in enumerate(text):
            if self._quote:
                if self._escaped or char == "\\":
                    self._escaped = not self._escaped
                elif char == self._quote:
                    self._quote = ""
            elif char in "'\"":
                self._quote = char
            elif char in "([{":
                self._open.append(char)
            elif char in _BRACKETS:
                if not self._open or self._open.pop() != _BRACKETS[char]:
                    self.malformed = True
                    return None
                if not self._open:
                    return at + 1
        return None


class PythonicParser(ToolParser):
    """A list of calls at the beginning of the output; everything else is content."""

    markers = ("[",)
    needs_marker = False

    def __init__(self, offered: Offered) -> None:
        super().__init__(offered)
        self._text, self._scanned = "", 0
        self._scanner: _BracketScanner | None = None
        self._done = False  # the rest is content

    def feed(self, text: str) -> list[ParsedDelta]:
        if self._done:
            return content_delta(text)
        self._text += text
        if self._scanner is None:
            if self._may_begin():
                return []
            if self._done:
                return self._take_rest()
        assert self._scanner is not None
        end = self._scanner.feed(self._text[self._scanned :])
        if end is None:
            self._scanned = len(self._text)
            self._done = self._scanner.malformed
            return self._take_rest() if self._done else []
        self._done = True
        end += self._scanned
        calls = python_calls(self._text[:end], self._offered)
        if calls:
            self._text = self._text[end:]
        return [delta for call in calls for delta in call.deltas()] + self._take_rest()

    def finish(self) -> list[ParsedDelta]:
        return self._take_rest()

    def _may_begin(self) -> bool:
        """Whether more text is needed to know what the output begins with; if not, the scanner is
        there or the output is content."""
        begin = _BEGIN.fullmatch(self._text)
        if begin is None or (begin[3] is None and len(self._text) > _LONGEST):
            self._done = True
            return False
        if begin[3] is None:
            return True
        self._scanner, self._scanned = _BracketScanner(), self._text.index("[")
        return False

    def _take_rest(self) -> list[ParsedDelta]:
        rest, self._text = self._text, ""
        return content_delta(rest)


class Llama4PythonicParser(BlockParser):
    """<|python_start|>[f(a=1)]<|python_end|>."""

    markers = ("<|python_start|>", "<|python_end|>")
    end_optional = True

    def read_block(self, block: str) -> list[FoundCall]:
        return python_calls(block, self._offered)


class Olmo3Parser(BlockParser):
    """<function_calls> and a call a line."""

    markers = ("<function_calls>", "</function_calls>")

    def read_block(self, block: str) -> list[FoundCall]:
        # One call may take several lines, if a text in it has a line break.
        lines = block.strip().split("\n")
        calls: list[FoundCall] = []
        while lines:
            for end in range(1, min(len(lines), 64) + 1):
                if found := python_calls("\n".join(lines[:end]), self._offered):
                    calls += found
                    del lines[:end]
                    break
            else:
                return []
        return calls
