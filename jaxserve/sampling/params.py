"""SamplingParams: what a user may ask of the sampler, validated once, with vLLM's names."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxserve.errors import InvalidRequestError

MAX_TOP_K = 2**31 - 1
MAX_STOP_STRINGS = 16


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose and end the tokens of one request.

    Args:
        temperature: 0 is greedy; otherwise logits are divided by it. Range [0, 2] as OpenAI.
        top_p: keep the smallest set of tokens whose probability reaches top_p. Range (0, 1].
        top_k: keep the k likeliest tokens; 0 or -1 keeps all.
        min_p: keep tokens at least min_p times as likely as the likeliest. Range [0, 1].
        seed: makes the draws reproducible whatever else runs; None draws a fresh one.
        max_tokens: most tokens to generate; None means up to the model's context length.
        stop: strings that end the text; the text is cut before them.
        stop_token_ids: extra ids that end the output, beside the model's own EOS ids.
        ignore_eos: go on after the model's EOS ids (stop_token_ids still end it).
        skip_special_tokens: leave special tokens out of the text.

    Raises:
        InvalidRequestError: names the field and its range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        self._check("temperature", self.temperature, 0.0, 2.0)
        self._check("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise InvalidRequestError("top_p must be greater than 0; it was 0", "top_p")
        self._check("min_p", self.min_p, 0.0, 1.0)
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        self._check("top_k", self.top_k, 0, MAX_TOP_K)
        if self.seed is not None:
            self._check("seed", self.seed, -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            self._check("max_tokens", self.max_tokens, 1, 2**31 - 1)
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError(f"stop takes at most {MAX_STOP_STRINGS} strings", "stop")
        if any(not isinstance(s, str) or not s for s in self.stop):
            raise InvalidRequestError("stop takes non-empty strings", "stop")

    @staticmethod
    def _check(name: str, value: float, low: float, high: float) -> None:
        ok = isinstance(value, (int, float)) and math.isfinite(value) and low <= value <= high
        if isinstance(value, bool) or not ok:
            raise InvalidRequestError(
                f"{name} must be between {low} and {high}; it was {value!r}", name
            )

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuses token ids that the model doesn't have (XLA would clamp them silently)."""
        for token in self.stop_token_ids:
            if not 0 <= token < vocab_size:
                raise InvalidRequestError(
                    f"stop_token_ids must be below the vocabulary size {vocab_size}; "
                    f"one was {token}",
                    "stop_token_ids",
                )
