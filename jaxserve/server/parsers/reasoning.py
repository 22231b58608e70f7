"""Reasoning between <think> tags, the format of Qwen 3, DeepSeek R1 and others."""

from __future__ import annotations

from typing import ClassVar

from jaxserve.server.parsers.text_parser import ParsedDelta, content_delta, split_at_marker

OPEN_TAG, CLOSE_TAG = "<think>", "</think>"


class ThinkTagParser:
    """<think> reasoning </think> content.

    Tags anywhere but at the beginning of the output are content.

    Args:
        prompt: the prompt's text, whose end decides what the output begins with if it is a tag.
        begun: the beginning of the answer that the prompt ends with, which the output continues.
    """

    markers: ClassVar[tuple[str, ...]] = (OPEN_TAG, CLOSE_TAG)
    _tag_optional: ClassVar[bool] = False  # whether output without an open tag is reasoning

    def __init__(self, prompt: str, begun: str = "") -> None:
        # "content", "reasoning", or "" until that is known
        self._kind = _kind_after(prompt.removesuffix(begun), begun)
        self._held = ""

    def feed(self, text: str) -> list[ParsedDelta]:
        text, self._held = self._held + text, ""
        if not self._kind:
            bare = text.lstrip()
            if OPEN_TAG.startswith(bare) and bare != OPEN_TAG:
                self._held = text
                return []
            if bare.startswith(OPEN_TAG):
                self._kind, text = "reasoning", bare.removeprefix(OPEN_TAG)
            else:
                self._kind = "reasoning" if self._tag_optional else "content"
        if self._kind == "content":
            return content_delta(text)
        reasoning, marker, rest = split_at_marker(text, (CLOSE_TAG,))
        deltas = [ParsedDelta("reasoning", reasoning)] if reasoning else []
        if marker is None:
            self._held = rest
            return deltas
        self._kind = "content"
        return deltas + content_delta(rest)

    def finish(self) -> list[ParsedDelta]:
        held, self._held = self._held, ""
        if self._kind == "reasoning" or (not self._kind and self._tag_optional):
            return [ParsedDelta("reasoning", held)] if held else []
        return content_delta(held)


def _kind_after(prompt: str, begun: str) -> str:
    before, own = prompt.rstrip(), begun.lstrip()
    if before.endswith(OPEN_TAG) or own.startswith(OPEN_TAG):
        return "content" if CLOSE_TAG in own else "reasoning"
    return "content" if own or before.endswith(CLOSE_TAG) else ""


class DeepSeekR1Parser(ThinkTagParser):
    """Output is reasoning up to </think>, with or without an open tag."""

    _tag_optional = True


REASONING_PARSERS: dict[str, type[ThinkTagParser]] = {
    "qwen3": ThinkTagParser,
    "deepseek_r1": DeepSeekR1Parser,
}
