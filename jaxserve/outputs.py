"""What a caller gets back: pieces while a request streams, and the whole when it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

FinishReason = Literal["stop", "length", "abort"]


class TokenLogprobs(NamedTuple):
    """One token under the model's own distribution, before temperature and all else.

    Args:
        logprob: natural logarithm of its probability; -9999 stands for all that is less.
        rank: 1 for the likeliest token.
        top: (token id, logprob) of the likeliest tokens, as many as were asked for.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


PromptLogprobs = tuple[TokenLogprobs | None, ...]  # the first token has none


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
        logprobs: one entry a token id, if they were asked for.
        prompt_logprobs: in the first delta of choice 0, if they were asked for.
    """

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: PromptLogprobs | None = None


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One finished choice. Fields as in CompletionDelta, whole instead of added."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None

    @classmethod
    def join(cls, deltas: Sequence[CompletionDelta]) -> CompletionOutput:
        """The whole of one choice from all its deltas, in order; the last has a finish_reason."""
        last = deltas[-1]
        assert last.finish_reason is not None
        logprobs = None
        if any(delta.logprobs is not None for delta in deltas):
            logprobs = tuple(entry for delta in deltas for entry in delta.logprobs or ())
        return cls(
            index=last.index,
            text="".join(delta.text for delta in deltas),
            token_ids=tuple(token for delta in deltas for token in delta.token_ids),
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            logprobs=logprobs,
        )

    @property
    def cumulative_logprob(self) -> float | None:
        """Log-probability of the whole output; None if logprobs weren't asked for."""
        return None if self.logprobs is None else sum(entry.logprob for entry in self.logprobs)


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request: its prompt and its choices."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    prompt_logprobs: PromptLogprobs | None = None
