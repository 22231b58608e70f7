"""OutputProcessor: turns the engine's outputs of one request into text deltas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxserve.engine.core.protocol import Output
from jaxserve.outputs import CompletionDelta, TokenLogprobs
from jaxserve.sampling.params import SamplingParams
from jaxserve.text.detokenizer import Detokenizer
from jaxserve.text.tokenizer import Tokenizer


class OutputProcessor:
    """The n choices of one request.

    open: indices of those that haven't ended.

    Args:
        prompt: its ids; the choices' text goes on from theirs.
        first: the index that the first choice has in its deltas.
        echoes_prompt: as in incremental_decoder().
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        prompt: Sequence[int],
        first: int = 0,
        echoes_prompt: bool = False,
    ) -> None:
        self._params = params
        self._detokenizers = [
            Detokenizer(tokenizer, params, prompt, first + i, echoes_prompt)
            for i in range(params.n)
        ]
        self._prompt: list[TokenLogprobs | None] = [None]
        self._started: set[int] = set()
        self.open = set(range(params.n))

    def take(self, output: Output) -> CompletionDelta | None:
        """The delta that an output makes; None if it has nothing for the reader.

        A delta may end a choice that the engine continues: only this side knows stop strings.
        """
        if output.prompt_logprobs is not None:
            # After a preemption some come again.
            self._prompt += output.prompt_logprobs[len(self._prompt) - output.prompt_position :]
        if output.index not in self.open or not (output.token_ids or output.finish_reason):
            return None
        # As in vLLM, reported only if the request names the stop token.
        is_named = output.stop_reason in self._params.stop_token_ids
        delta = self._detokenizers[output.index].add(
            output.token_ids, output.finish_reason, output.stop_reason if is_named else None
        )
        if output.logprobs is not None:
            logprobs = tuple(output.logprobs[: len(delta.token_ids)])  # cut at a stop string
            delta = replace(delta, logprobs=logprobs)
        if output.accepted_guesses or output.rejected_guesses:
            delta = replace(
                delta,
                accepted_guesses=output.accepted_guesses,
                rejected_guesses=output.rejected_guesses,
            )
        if output.embedding is not None:
            delta = replace(delta, embedding=output.embedding)
        if output.index not in self._started:
            self._started.add(output.index)
            delta = self._with_prompt(delta, output)
        if delta.finish_reason is not None:
            self.open.discard(output.index)
        return delta

    def _with_prompt(self, delta: CompletionDelta, output: Output) -> CompletionDelta:
        """A choice's first delta, with the figures of the prompt added."""
        if output.cached_tokens is not None:
            delta = replace(delta, cached_tokens=output.cached_tokens)
        if self._params.prompt_logprobs is not None:
            delta = replace(delta, prompt_logprobs=tuple(self._prompt))
        return delta
