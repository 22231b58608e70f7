"""Collector: one offline request, put together from its deltas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxserve.errors import JaxserveError
from jaxserve.outputs import (
    CompletionDelta,
    CompletionOutput,
    PositionLogprobs,
    RequestOutput,
    TokenLogprobs,
)
from jaxserve.sampling.params import SamplingParams
from jaxserve.text.tokenizer import Tokenizer


class Collector:
    """One request, and the deltas of its choices so far.

    error: why it has failed.

    Args:
        index: the prompt's place among those of the call.
        prompt: its text, if it was one.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        index: int,
        prompt: str | None,
        ids: Sequence[int],
        params: SamplingParams,
    ) -> None:
        self.index, self.prompt, self.prompt_ids, self.params = index, prompt, ids, params
        self.deltas: list[list[CompletionDelta]] = [[] for _ in range(params.n)]
        self.error: JaxserveError | None = None
        self._tokenizer = tokenizer

    @property
    def ended(self) -> bool:
        return all(choice and choice[-1].finish_reason is not None for choice in self.deltas)

    @property
    def embedding(self) -> bytes | None:
        return self.deltas[0][-1].embedding

    def add(self, delta: CompletionDelta, index: int) -> None:
        self.deltas[index].append(delta)

    def output(self, request_id: str) -> RequestOutput:
        """The request with all choices that have begun."""
        first = next((choice[0] for choice in self.deltas if choice), None)
        prompt_logprobs = first.prompt_logprobs if first is not None else None
        return RequestOutput(
            request_id,
            self.prompt,
            tuple(self.prompt_ids),
            tuple(self._choice(deltas) for deltas in self.deltas if deltas),
            None if prompt_logprobs is None else self._by_id(prompt_logprobs, ()),
            (first.cached_tokens or 0) if first is not None else 0,
            self.index,
            self.ended,
        )

    def _choice(self, deltas: list[CompletionDelta]) -> CompletionOutput:
        if len(deltas) > 1:
            deltas[:] = [CompletionDelta.join(deltas)]
        entries = deltas[0].logprobs
        if entries is None:
            return CompletionOutput.join(deltas)
        # A choice always has logprobs for every token, so that none of them is None.
        logprobs = self._by_id(entries, self.prompt_ids)
        return CompletionOutput.join(deltas, tuple(entry for entry in logprobs if entry))

    def _by_id(
        self, entries: Iterable[TokenLogprobs | None], before: Sequence[int]
    ) -> tuple[PositionLogprobs | None, ...]:
        """Args: before: tokens before the first entry."""
        decoder = self._tokenizer.decoder(before, skip_special_tokens=False)
        written: list[PositionLogprobs | None] = []
        for place, entry in enumerate(entries):
            if entry is None:  # a prompt's first token
                written.append(None)
                decoder.add(self.prompt_ids[place])
                continue
            written.append(
                PositionLogprobs(
                    entry, lambda token: decoder.next_bytes(token).decode("utf-8", "replace")
                )
            )
            decoder.add(entry.token_id)
        return tuple(written)
