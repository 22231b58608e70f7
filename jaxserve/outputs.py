"""What a caller gets back: pieces while a request streams, and the whole when it has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class CompletionDelta:
    """What was added to one choice since the last delta.

    Args:
        index: which of the request's choices.
        text: text to append; may be empty while bytes of a character or a possible stop string
            are held back.
        token_ids: ids behind this step (they may run ahead of the text that is held back).
        finish_reason: None until the last delta of this choice.
        stop_reason: the stop string or stop token id that ended it; None for EOS or length.
    """

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One finished choice. Fields as in CompletionDelta, whole instead of added."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request: its prompt and its choices."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
