"""The request of POST /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams
from jaxserve.server.wire.generation_request import (
    GENERATION_UNSUPPORTED,
    NO_DEFAULTS,
    GenerationRequest,
    prompt_list,
)
from jaxserve.server.wire.validation import renaming

DEFAULT_MAX_TOKENS = 16  # as in OpenAI's API


class CompletionRequest(GenerationRequest, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions.

    Args:
        echo: put the prompt before the text, and the prompt's tokens before those of logprobs.
            max_tokens may then be 0.
    """

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    best_of: int | None = None
    echo: bool | None = None

    @property
    def only_echo(self) -> bool:
        return bool(self.echo) and self.max_tokens == 0

    @property
    def returned_choices(self) -> int:
        """Choices of each prompt in the response, of the `best_of` that are generated."""
        return 1 if self.n is None else self.n

    def prompts(self) -> list[str | list[int]]:
        """Raises InvalidRequestError as prompt_list() does."""
        return prompt_list(self.prompt, "prompt")

    def to_sampling_params(self, defaults: Mapping[str, Any] = NO_DEFAULTS) -> SamplingParams:
        limit = self.max_tokens
        if self.only_echo:
            limit = 1  # the engine's minimum; the token isn't returned
        all_returned = self.best_of == self.returned_choices
        if self.best_of is None or (all_returned and not self.use_beam_search):
            params = self.sampling_params(limit, self.logprobs, defaults)
            if self.echo and self.logprobs is not None and self.prompt_logprobs is None:
                params = replace(params, prompt_logprobs=self.logprobs)
            return params
        if self.echo:
            raise InvalidRequestError(
                "best_of can't be combined with echo: leave out one of them", "best_of"
            )
        if self.best_of < self.returned_choices:
            raise InvalidRequestError("best_of must be at least n", "best_of")
        if self.use_beam_search:
            return self.sampling_params(limit, self.logprobs, defaults, self.best_of)
        if self.stream:
            raise InvalidRequestError(
                "best_of can't be combined with stream: leave out one of them", "best_of"
            )
        # The best choices are found by the logprobs of their tokens.
        params = self.sampling_params(limit, self.logprobs or 0, defaults)
        with renaming({"n": "best_of"}):
            return replace(params, n=self.best_of)


COMPLETION_UNSUPPORTED: dict[str, tuple[Any, ...]] = GENERATION_UNSUPPORTED | {
    "suffix": ("",),
    # vLLM's extras
    "prompt_embeds": (),
}
