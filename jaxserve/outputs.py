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


@dataclass(slots=True)
class CompletionDelta:
    """What was added to one choice since the last delta.

    Nobody changes one; it isn't frozen because one is made for every token, and that would cost
    three times as much.

    Args:
        index: which of the request's choices.
        text: text to append; may be empty while bytes of a character or a possible stop string
            are held back.
        token_ids: ids behind this step (they may run ahead of the text that is held back).
        finish_reason: None until the last delta of this choice.
        stop_reason: the stop string or stop token id that ended it; None for EOS or length.
        logprobs: one entry a token id, if they were asked for.
        prompt_logprobs: in the first delta of each choice, if they were asked for.
        cached_tokens: in the first delta of a request's first choice: tokens of its prompt that
            the prefix cache had.
        embedding: of the prompt, [E] float32, in place of a text.
    """

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    cached_tokens: int | None = None
    embedding: bytes | None = None

    @classmethod
    def join(cls, deltas: Sequence[CompletionDelta]) -> CompletionDelta:
        """Deltas of one choice, in order, as one."""
        first, last = deltas[0], deltas[-1]
        return cls(
            last.index,
            "".join([delta.text for delta in deltas]),
            tuple([token for delta in deltas for token in delta.token_ids]),
            last.finish_reason,
            last.stop_reason,
            _join_logprobs(deltas),
            first.prompt_logprobs,
            first.cached_tokens,
        )


def _join_logprobs(deltas: Sequence[CompletionDelta]) -> tuple[TokenLogprobs, ...] | None:
    if all(delta.logprobs is None for delta in deltas):
        return None
    return tuple(entry for delta in deltas for entry in delta.logprobs or ())


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
        whole = CompletionDelta.join(deltas)
        assert whole.finish_reason is not None
        return cls(
            index=whole.index,
            text=whole.text,
            token_ids=whole.token_ids,
            finish_reason=whole.finish_reason,
            stop_reason=whole.stop_reason,
            logprobs=whole.logprobs,
        )

    @property
    def cumulative_logprob(self) -> float | None:
        """Log-probability of the whole output; None if logprobs weren't asked for."""
        return None if self.logprobs is None else sum(entry.logprob for entry in self.logprobs)


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request: its prompt and its choices.

    Args:
        num_cached_tokens: tokens of the prompt that the prefix cache had.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    prompt_logprobs: PromptLogprobs | None = None
    num_cached_tokens: int = 0
