"""Reasoning between tags at the beginning of the output: <think> and other models' marks."""

from __future__ import annotations

from typing import ClassVar

from jaxserve.server.parsers.text_parser import ParsedDelta, content_delta, split_at_marker
from jaxserve.server.wire.call_grammar import Reasoning


class ThinkTagParser:
    """<think> reasoning </think> content: the format of Qwen 3 and many others.

    Tags anywhere but at the beginning of the output are content.

    markers: the open tag and the close tag.
    more_opens, more_closes: other spellings of them.

    Args:
        prompt: the prompt's text, whose end decides what the output begins with if it is a tag.
        begun: the beginning of the answer that the prompt ends with, which the output continues.
    """

    markers: ClassVar[tuple[str, ...]] = ("<think>", "</think>")
    more_opens: ClassVar[tuple[str, ...]] = ()
    more_closes: ClassVar[tuple[str, ...]] = ()
    _tag_optional: ClassVar[bool] = False  # whether output without an open tag is reasoning

    def __init__(self, prompt: str, begun: str = "") -> None:
        # "content", "reasoning", or "" until that is known
        self._kind = self.kind_after(prompt.removesuffix(begun), begun)
        self._held = ""

    @classmethod
    def opens(cls) -> tuple[str, ...]:
        return (cls.markers[0], *cls.more_opens)

    @classmethod
    def closes(cls) -> tuple[str, ...]:
        return (cls.markers[1], *cls.more_closes)

    @classmethod
    def kind_after(cls, prompt: str, begun: str) -> str:
        """What an output begins with after this prompt: "content", "reasoning", or "" if only the
        output says so."""
        before, own = prompt.rstrip(), begun.lstrip()
        if before.endswith(cls.opens()) or own.startswith(cls.opens()):
            return "content" if any(close in own for close in cls.closes()) else "reasoning"
        return "content" if own or before.endswith(cls.closes()) else ""

    @classmethod
    def reasoning_after(cls, prompt: str, begun: str) -> Reasoning | None:
        """The reasoning that an output begins with after this prompt, or may begin with; None if
        there is none."""
        kind = cls.kind_after(prompt, begun)
        if kind == "content":
            return None
        return Reasoning("" if kind or cls._tag_optional else cls.markers[0], cls.markers[1])

    def feed(self, text: str) -> list[ParsedDelta]:
        text, self._held = self._held + text, ""
        if not self._kind:
            bare = text.lstrip()
            begun = next((tag for tag in self.opens() if bare.startswith(tag)), None)
            if begun is not None:
                self._kind, text = "reasoning", bare.removeprefix(begun)
            elif any(tag.startswith(bare) for tag in self.opens()):
                self._held = text
                return []
            else:
                self._kind = "reasoning" if self._tag_optional else "content"
        if self._kind == "content":
            return content_delta(text)
        reasoning, marker, rest = split_at_marker(text, self.closes())
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


class DeepSeekR1Parser(ThinkTagParser):
    """Output is reasoning up to </think>, with or without an open tag."""

    _tag_optional = True


class MistralReasoningParser(ThinkTagParser):
    """[THINK] reasoning [/THINK], the format of Magistral."""

    markers = ("[THINK]", "[/THINK]")


class SeedReasoningParser(ThinkTagParser):
    """<seed:think> reasoning </seed:think>."""

    markers = ("<seed:think>", "</seed:think>")


class GraniteReasoningParser(ThinkTagParser):
    """Sentences of Granite 3.2 around the reasoning."""

    markers = ("Here is my thought process:", "Here is my response:")
    more_opens = ("Here's my thought process:",)
    more_closes = ("Here's my response:",)


REASONING_PARSERS: dict[str, type[ThinkTagParser]] = {
    "qwen3": ThinkTagParser,
    "deepseek_r1": DeepSeekR1Parser,
    "mistral": MistralReasoningParser,
    "seed_oss": SeedReasoningParser,
    "granite": GraniteReasoningParser,
}
