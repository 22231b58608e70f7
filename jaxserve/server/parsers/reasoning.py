"""Reasoning in <think> tags, as Qwen 3, DeepSeek R1 and others write it."""

from __future__ import annotations

from typing import ClassVar

from jaxserve.server.parsers.pieces import Piece, content, cut

OPEN, CLOSE = "<think>", "</think>"


class Think:
    """<think> reasoning </think> content.

    Only an answer that begins with reasoning has any.

    Args:
        prompt: the text that the answer goes on from; reasoning may begin in it.
    """

    markers: ClassVar[tuple[str, ...]] = (OPEN, CLOSE)
    _begun: ClassVar[bool] = False  # with the answer, tag or no tag

    def __init__(self, prompt: str) -> None:
        inside = prompt.rstrip().endswith(OPEN)
        self._kind = "reasoning" if inside else ""  # "" until it is known
        self._held = ""

    def feed(self, text: str) -> list[Piece]:
        text, self._held = self._held + text, ""
        if not self._kind:
            bare = text.lstrip()
            if OPEN.startswith(bare) and bare != OPEN:
                self._held = text
                return []
            if bare.startswith(OPEN):
                self._kind, text = "reasoning", bare.removeprefix(OPEN)
            else:
                self._kind = "reasoning" if self._begun else "content"
        if self._kind == "content":
            return content(text)
        thought, marker, rest = cut(text, (CLOSE,))
        pieces = [Piece("reasoning", thought)] if thought else []
        if marker is None:
            self._held = rest
            return pieces
        self._kind = "content"
        return pieces + content(rest)

    def finish(self) -> list[Piece]:
        held, self._held = self._held, ""
        if self._kind == "reasoning" or (not self._kind and self._begun):
            return [Piece("reasoning", held)] if held else []
        return content(held)


class DeepSeekR1(Think):
    """An answer is reasoning up to </think>, whether or not it opens with a tag."""

    _begun = True


REASONING_PARSERS: dict[str, type[Think]] = {"qwen3": Think, "deepseek_r1": DeepSeekR1}
