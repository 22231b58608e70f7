"""OutputProcessor: one request's outputs, from the engine's news to deltas of text."""

from __future__ import annotations

from dataclasses import replace

from jaxserve.engine.core.protocol import Output
from jaxserve.outputs import CompletionDelta, TokenLogprobs
from jaxserve.sampling.params import SamplingParams
from jaxserve.text.detokenizer import Detokenizer
from jaxserve.text.tokenizer import Tokenizer


class OutputProcessor:
    """The n choices of one request.

    open: indices of those that have yet to end.

    Args:
        first: the first one's index on deltas.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, first: int = 0) -> None:
        self._params = params
        self._detokenizers = [Detokenizer(tokenizer, params, first + i) for i in range(params.n)]
        self._prompt: list[TokenLogprobs | None] = [None]
        self._begun: set[int] = set()
        self.open = set(range(params.n))

    def take(self, output: Output) -> CompletionDelta | None:
        """The delta that a piece of news makes; None if it has none for the reader.

        An engine that goes on with a choice that is no longer open is to be told (a stop string,
        which only this side sees).
        """
        if output.prompt_logprobs is not None:
            # What comes again, after a preemption, is known already.
            self._prompt += output.prompt_logprobs[len(self._prompt) - output.prompt_position :]
        if output.index not in self.open or not (output.token_ids or output.finish_reason):
            return None
        # The stop token only if the user asked for it, as vLLM reports.
        asked = output.stop_reason in self._params.stop_token_ids
        delta = self._detokenizers[output.index].add(
            output.token_ids, output.finish_reason, output.stop_reason if asked else None
        )
        if output.logprobs is not None:
            logprobs = tuple(output.logprobs[: len(delta.token_ids)])  # trimmed at a stop string
            delta = replace(delta, logprobs=logprobs)
        if output.embedding is not None:
            delta = replace(delta, embedding=output.embedding)
        if output.index not in self._begun:
            self._begun.add(output.index)
            delta = self._with_prompt(delta, output)
        if delta.finish_reason is not None:
            self.open.discard(output.index)
        return delta

    def _with_prompt(self, delta: CompletionDelta, output: Output) -> CompletionDelta:
        """A choice's first delta, with what is known of the prompt."""
        if output.cached_tokens is not None:
            delta = replace(delta, cached_tokens=output.cached_tokens)
        if self._params.prompt_logprobs is not None:
            delta = replace(delta, prompt_logprobs=tuple(self._prompt))
        return delta
