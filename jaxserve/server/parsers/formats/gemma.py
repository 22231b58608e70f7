"""call:NAME{key:value}, in the tags of FunctionGemma or of Gemma 4, with texts in own marks."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from jaxserve.server.parsers.block_calls import BlockParser
from jaxserve.server.parsers.call_reader import FoundCall, arguments_text

_NAME = re.compile(r"\s*call:\s*([\w.-]+)\s*(?=\{)")
_KEY = re.compile(r"\s*([^\s:{}\[\],]+)\s*:\s*")
_WORD = re.compile(r"[^\s,{}\[\]]+")
_NUMBER = re.compile(r"-?\d{1,300}(\.\d{1,300})?([eE][-+]?\d{1,3})?")
_SPACE = re.compile(r"\s*")
_DEEPEST = 64
_WORDS = {"true": True, "false": False, "null": None}


class GemmaParser(BlockParser):
    """FunctionGemma's tags."""

    markers = ("<start_function_call>", "<end_function_call>", "<escape>")
    quote: ClassVar[str] = "<escape>"

    def read_block(self, block: str) -> list[FoundCall]:
        name = _NAME.match(block)
        if name is None or name[1] not in self._offered:
            return []
        try:
            value, end = self._value(block, name.end(), 0)
        except ValueError:
            return []
        written = arguments_text(value)
        if block[end:].strip() or written is None:
            return []
        return [FoundCall(name[1], written)]

    def _value(self, text: str, at: int, depth: int) -> tuple[Any, int]:
        """A value and the place after it. Raises ValueError if there is none."""
        if depth > _DEEPEST:
            raise ValueError("too deep")
        if text.startswith(self.quote, at):
            begin = at + len(self.quote)
            end = text.index(self.quote, begin)
            return text[begin:end], end + len(self.quote)
        if text.startswith("{", at):
            return self._items(text, at + 1, "}", depth)
        if text.startswith("[", at):
            return self._items(text, at + 1, "]", depth)
        word = _WORD.match(text, at)
        if word is None:
            raise ValueError("no value")
        if word[0] in _WORDS:
            return _WORDS[word[0]], word.end()
        number = _NUMBER.fullmatch(word[0])
        if number is None:
            return word[0], word.end()
        is_whole = number[1] is None and number[2] is None
        return (int if is_whole else float)(word[0]), word.end()

    def _items(self, text: str, at: int, close: str, depth: int) -> tuple[Any, int]:
        """The items of an object or a list up to its end."""
        keys: list[str] = []
        values: list[Any] = []
        while True:
            at = _after_space(text, at)
            if text.startswith(close, at) and not values:
                break
            if close == "}":
                key, at = self._key(text, at)
                keys.append(key)
            value, at = self._value(text, at, depth + 1)
            values.append(value)
            at = _after_space(text, at)
            if text.startswith(close, at):
                break
            if not text.startswith(",", at):
                raise ValueError("no comma")
            at += 1
        if len(set(keys)) < len(keys):
            raise ValueError("a key comes twice")
        return (dict(zip(keys, values, strict=True)) if close == "}" else values), at + 1

    def _key(self, text: str, at: int) -> tuple[str, int]:
        if text.startswith(self.quote, at):
            key, at = self._value(text, at, 0)
            at = _after_space(text, at)
            if not text.startswith(":", at):
                raise ValueError("no colon")
            return str(key), _after_space(text, at + 1)
        match = _KEY.match(text, at)
        if match is None:
            raise ValueError("no key")
        return match[1], match.end()


class Gemma4Parser(GemmaParser):
    markers = ("<|tool_call>", "<tool_call|>", '<|"|>')
    quote = '<|"|>'


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()
